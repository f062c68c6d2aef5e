"""Who holds a lock: a daemon, which has the file open for writing, or somebody who can only read it.

Root in a container with a group has the daemon's directory, mounted so that nothing there can be changed. But what can
be opened for reading can be locked as well, and would keep the next daemon out for as long as the container lives.

So a daemon has two locks of its file: flock, and a lock for writing (fcntl), which the kernel gives only to who may
write. A look at who has the file open would not do: there may be millions of descriptors.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from enum import Enum, auto
from pathlib import Path

TRIES = 100  # at a lock that others take and let go

_LOCK = struct.Struct("@hhqqi4x")  # struct flock of all of the file


class Holder(Enum):
    """Who has the file locked; `ME` by now."""

    ME = auto()
    DAEMON = auto()
    READER = auto()


def lock(descriptor: int) -> Holder:
    """Locks the file as a daemon does, unless another one has it, or somebody who can only read it, or perhaps can."""
    is_known = True
    try:
        for _ in range(TRIES):
            kind = _in_the_way(descriptor)
            if kind != fcntl.F_UNLCK:
                break
        if kind is not None:
            return Holder.READER if kind == fcntl.F_RDLCK else Holder.DAEMON
    except OSError:  # the file system has no such locks
        is_known = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # by who can only read; on NFS, where both are one, by the lock above
        return Holder.ME if is_known and not _is_older_daemons(descriptor) else Holder.DAEMON
    return Holder.ME


def _in_the_way(descriptor: int) -> int | None:
    """The kind of lock that keeps us from one for writing; F_UNLCK: there was one. None: it is ours."""
    wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):
        return int(_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0])
    return None


def _is_older_daemons(descriptor: int) -> bool:
    """Whether the process that wrote its pid there holds it by flock alone, as daemons did before 0.2.0. True where
    that cannot be known."""
    pid = signed_by(descriptor)
    place = _place(descriptor)
    try:
        for file in Path(f"/proc/{pid}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                lines = _said_of(file)
                if _locks(lines, place):
                    return _may_write(lines)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    except PermissionError:
        return True
    return False


def signed_by(descriptor: int) -> int | None:
    """The pid in the file; None if there is none."""
    pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(pid) if pid.isdecimal() and pid.isascii() else None


def _place(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "


def _said_of(file: Path) -> dict[str, str]:
    lines = file.read_text(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _locks(lines: dict[str, str], place: str) -> bool:
    return "FLOCK" in lines.get("lock", "") and place in lines["lock"]


def _may_write(lines: dict[str, str]) -> bool:
    return int(lines["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def locked_in_place_of(path: Path, other: int) -> int | None:
    """A new file at ``path``, locked before anybody can open it, in place of the file of the descriptor ``other``; its
    descriptor. None if another file is there by now. Raises OSError.
    """
    descriptor = _locked_without_name(path.parent)
    try:
        if _put(descriptor, path, other):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _locked_without_name(directory: Path) -> int:
    """The descriptor of a new file there that nobody else can open. Raises OSError."""
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _put(descriptor: int, path: Path, other: int) -> bool:
    aside = path.with_name(f"{path.name}~{os.getpid()}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    # That of a daemon which was faster, or by now one's that is.
    if not os.path.samestat(aside.stat(), os.fstat(other)) or _in_the_way(other) != fcntl.F_RDLCK:
        aside.rename(path)
        return False
    aside.unlink()
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(descriptor), path, src_dir_fd=descriptors)  # with a directory Python follows the link there
    except FileExistsError:
        return False
    finally:
        os.close(descriptors)
    return True
