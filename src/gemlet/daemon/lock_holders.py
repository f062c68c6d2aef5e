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


def no_daemon_holds(descriptor: int) -> bool:
    """Whether no process that may write to the file has it locked. False where not all processes can be looked at."""
    if not sees_the_drivers_pids():
        return False
    found = os.fstat(descriptor)
    place = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "
    try:
        return not any(_locks_and_writes(text, place) for text in _open_files())
    except PermissionError:
        return False


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _open_files() -> Iterator[str]:
    """What the kernel says of each open file of each process. Nothing of the file systems they are on is asked."""
    for process in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for file in (process / "fdinfo").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    yield file.read_text(errors="replace")


def _locks_and_writes(text: str, place: str) -> bool:
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if "FLOCK" not in lines.get("lock", "") or place not in lines["lock"]:
        return False
    return int(lines["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def locked_in_place_of(path: Path, other: int) -> int | None:
    """A new file at ``path``, locked before anybody can open it, in place of the file of the descriptor ``other``; its
    descriptor. None if another file is there by now. Raises OSError.
    """
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _put(descriptor, path, other):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


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
