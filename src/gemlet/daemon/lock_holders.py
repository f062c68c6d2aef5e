"""Who holds a lock: a daemon, which has the file open for writing, or somebody who can only read it.

Root in a container with a group has the daemon's directory, mounted so that nothing there can be changed. But what can
be opened for reading can be locked as well, and would keep the next daemon out for as long as the container lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.daemon.processes import sees_the_drivers_pids

if TYPE_CHECKING:
    from collections.abc import Iterator


def no_daemon_holds(descriptor: int, directory: Path) -> bool:
    """Whether no process that may write to the file, which lies there, has it locked.

    False where that cannot be known: where not all processes can be looked at, and on file systems such as btrfs and
    overlayfs, which name another device to the holders of a lock than to those who ask for the file's.
    """
    try:
        if not sees_the_drivers_pids() or not _can_be_told(directory):
            return False
        place = _place(descriptor)
        return not any(_locks(lines, place) and _may_write(lines) for lines in _open_files())
    except OSError:
        return False


def _can_be_told(directory: Path) -> bool:
    """Whether a file there is known again by what is said of its lock."""
    probe = _locked_without_name(directory)
    try:
        return _locks(_said_of(Path(f"/proc/self/fdinfo/{probe}")), _place(probe))
    finally:
        os.close(probe)


def _place(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _open_files() -> Iterator[dict[str, str]]:
    """What the kernel says of each open file of each process. Nothing of the file systems they are on is asked."""
    for process in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for file in (process / "fdinfo").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    yield _said_of(file)


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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _put(descriptor: int, path: Path, other: int) -> bool:
    aside = path.with_name(f"{path.name}~")
    path.rename(aside)
    if not os.path.samestat(aside.stat(), os.fstat(other)):  # that of a daemon which was faster
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
