"""Writes into a file that another process has open, too, and waits for nothing that this process does.

write(2) locks the file. Its owner may hold that lock for as long as it likes, by a write of gigabytes or from memory
whose pages come late, and a process that waits for it cannot even be killed. A fault of a mapped page does not take
that lock; and where the page is gone the kernel, which copies here, gives an error in place of a signal.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gemlet.inference_protocol.tensors import Buffer

PIECE_BYTES = 1024**2
_libc = ctypes.CDLL(None, use_errno=True)


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def write(descriptor: int, start: int, data: Buffer) -> None:
    """Puts ``data`` there. Raises OSError: with EFBIG if the file ends before it, with ENOSPC if no page is left."""
    if not len(data):
        return
    try:
        first = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(descriptor, start - first + len(data), offset=first)
    except ValueError:  # Python looks at the size
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
    try:
        _copy(np.frombuffer(data, np.uint8), np.frombuffer(mapped, np.uint8, offset=start - first))
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        code = errno.EFBIG if os.fstat(descriptor).st_size < start + len(data) else errno.ENOSPC
        raise OSError(code, os.strerror(code)) from None


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """By the kernel. Raises OSError, with EFAULT if a page cannot be had."""
    try:
        _copy_at_once(source, target)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOSYS}:
            raise
        _copy_by_file(source, target)


def _copy_at_once(source: np.ndarray, target: np.ndarray) -> None:
    """Where containers may do that: some only since 2021."""
    done = 0
    while done < source.nbytes:
        here, there = (_Part(each.ctypes.data + done, each.nbytes - done) for each in (source, target))
        count = _libc.process_vm_writev(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        done += count


def _copy_by_file(source: np.ndarray, target: np.ndarray) -> None:
    """By a file of this process's own, which takes twice as long."""
    descriptor = os.memfd_create("copy", os.MFD_CLOEXEC)
    try:
        done = 0
        while done < source.nbytes:
            part = slice(done, done + PIECE_BYTES)
            os.pwrite(descriptor, source.data[part], 0)
            done += os.preadv(descriptor, [target.data[part]], 0)
    finally:
        os.close(descriptor)
