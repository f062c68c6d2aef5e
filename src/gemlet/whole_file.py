"""Files that gemlet writes for later readers: each finds the old one or the new one, whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replaces ``path`` by a file of its own, of ``mode`` whatever the umask is. Raises OSError; then the old one
    stands.

    It is written beside ``path``. What lies there, as of one who was killed, is removed and never opened: it may be a
    link that leads elsewhere, or a FIFO. ``durable``: it outlives a power cut.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(descriptor)
        fresh.replace(path)
        if durable:
            _sync_directory(path.parent)
    except BaseException:  # a Ctrl-C, too
        fresh.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    # The name is the directory's: without this a power cut may bring back the file before.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
