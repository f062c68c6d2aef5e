"""Whether a directory is a place for sockets that others rely on: nobody else can put something in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINKS = 40  # as many as Linux follows
ROOT = 0


def distrust(directory: Path) -> str | None:
    """Who but root and this user may change ``directory``, or replace it or what it is in; None if nobody may.

    In a directory with the sticky bit, such as /tmp, what one has is not for others to replace; but sockets right in it
    would be made by others while there is no daemon. What is not there is not looked at. Raises OSError.
    """
    for place in _way(directory):
        try:
            status = place.lstat()
        except FileNotFoundError:
            return None
        if status.st_uid not in {ROOT, os.geteuid()}:
            return f"{place} belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            continue
        shared = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(status))
        if shared and not (status.st_mode & stat.S_ISVTX and place != directory):
            return f"other users can write to {place}"
    return None


def _is_private(status: os.stat_result) -> bool:
    """Whether the group is that of its owner alone, as distributions make one for each user."""
    return status.st_gid == status.st_uid


def _way(directory: Path) -> Iterator[Path]:
    """Every directory and link that a look-up of ``directory`` passes, from the root on."""
    at = Path("/")
    yield at
    names = list(reversed(directory.absolute().parts[1:]))
    links = 0
    while names:
        name = names.pop()
        if name == "..":
            at = at.parent
            continue
        at /= name
        yield at
        if at.is_symlink() and links < MAX_LINKS:
            links += 1
            target = at.readlink()
            names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
