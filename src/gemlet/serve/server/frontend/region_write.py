"""Writes into files that another process has open, too; as a program, `region_write.py SOCKET`, those of one user.

write(2) locks the file. Its owner may hold that lock for as long as it likes, by a write of gigabytes or from memory
whose pages come late, and a process that waits for it cannot even be killed. A fault of a mapped page does not take
that lock; and where the page is gone the kernel, which copies here, gives an error in place of a signal. But a fault
waits for an owner who frees the file's memory at this moment, which may take seconds, and holds the lock on all memory
of its process meanwhile. So files of users who may not end the server are written in a process that does nothing else.

An order is where to write, what, and the file's descriptor; what is large comes in a file of its own. The reply is a
code of the system's, 0 if it is done. What is imported here must be little: each user who writes has such a process.
"""

import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import sys

ORDER = struct.Struct("=QQ")  # where in the file, and how many bytes
REPLY = struct.Struct("=i")
SMALL_BYTES = 64 * 1024  # as many are in the order itself
PIECE_BYTES = 1024**2
_libc = ctypes.CDLL(None, use_errno=True)


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def write(descriptor: int, start: int, address: int, nbytes: int) -> None:
    """Puts ``nbytes`` at ``address`` there. Raises OSError: with EFBIG if the file ends before it, with ENOSPC if no
    page is left."""
    if not nbytes:
        return
    first = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(descriptor, start - first + nbytes, offset=first)
    except ValueError:  # Python looks at the size
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
    target = (ctypes.c_char * len(mapped)).from_buffer(mapped)
    try:
        _copy(address, ctypes.addressof(target) + start - first, nbytes)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        code = errno.EFBIG if os.fstat(descriptor).st_size < start + nbytes else errno.ENOSPC
        raise OSError(code, os.strerror(code)) from None
    finally:
        del target  # which keeps it open
        mapped.close()


def _copy(source: int, target: int, nbytes: int) -> None:
    """By the kernel. Raises OSError, with EFAULT if a page cannot be had."""
    try:
        _copy_at_once(source, target, nbytes)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOSYS}:
            raise
        _copy_by_file(source, target, nbytes)


def _copy_at_once(source: int, target: int, nbytes: int) -> None:
    """Where containers may do that: some only since 2021."""
    done = 0
    while done < nbytes:
        here, there = (_Part(address + done, nbytes - done) for address in (source, target))
        count = _libc.process_vm_writev(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        done += count


def _copy_by_file(source: int, target: int, nbytes: int) -> None:
    """By a file of this process's own, which takes twice as long."""
    descriptor = os.memfd_create("copy", os.MFD_CLOEXEC)
    try:
        done = 0
        while done < nbytes:
            piece = ctypes.c_char * min(PIECE_BYTES, nbytes - done)
            os.pwrite(descriptor, piece.from_address(source + done), 0)
            done += os.preadv(descriptor, [piece.from_address(target + done)], 0)
    finally:
        os.close(descriptor)


def serve(server: socket.socket) -> None:
    """Until the server is gone."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(server, ORDER.size + SMALL_BYTES, 2)
        if not order:
            return
        try:
            server.send(REPLY.pack(_obey(order, descriptors)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _obey(order: bytes, descriptors: "list[int]") -> int:
    """The code of what went wrong."""
    start, nbytes = ORDER.unpack_from(order)
    try:
        if len(descriptors) == 1:
            data = (ctypes.c_char * nbytes).from_buffer_copy(order, ORDER.size)
            write(descriptors[0], start, ctypes.addressof(data), nbytes)
        elif descriptors:
            with mmap.mmap(descriptors[1], nbytes) as staged:
                there = (ctypes.c_char * nbytes).from_buffer(staged)
                try:
                    write(descriptors[0], start, ctypes.addressof(there), nbytes)
                finally:
                    del there
        else:
            return errno.EMFILE
    except MemoryError:
        return errno.ENOMEM
    except OSError as error:
        return error.errno or errno.EIO
    return 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # end_signals.py's; the end of the server ends this
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)
