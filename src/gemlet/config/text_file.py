"""Whole text files, read and written with errors that say what is wrong."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, BinaryIO

from gemlet import paths
from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 64 * 1024**2  # a trace of a month in seconds has 20 MB


def read_text(path: Path, *, regular: bool = False, most: int = MAX_BYTES) -> str:
    """The whole file, of ``most`` bytes. ``regular``: refuse what only looks like a file, such as a pipe.

    Raises ConfigError.
    """
    try:
        if regular:
            content = read_bytes(path, most)
        else:
            with path.open("rb") as file:  # people name pipes, too: gemlet plan <(...)
                content = _bounded(file, most, path)
        return content.decode().replace("\r\n", "\n")
    except OSError as error:
        hint = "check the spelling" if error.errno == errno.ENOENT else None
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(path), hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError("not valid UTF-8", path=str(path), hint="save the file as UTF-8") from None


def read_bytes(path: Path, most: int) -> bytes:
    """The whole file, if it is one: a FIFO is not waited for, a device not read to its end.

    Raises OSError if it cannot be read, ConfigError if it is not a file or larger than ``most`` bytes.
    """
    try:
        descriptor = paths.open_regular(path)
    except paths.NotRegularError:
        raise ConfigError("not a regular file", path=str(path), hint="name the file itself") from None
    with os.fdopen(descriptor, "rb") as file:
        return _bounded(file, most, path)


def _bounded(file: BinaryIO, most: int, path: Path) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"larger than {most} bytes", path=str(path))
    return content


def write_text(path: Path, text: str) -> None:
    """The old file or the new one, whole: for who reads meanwhile, and on a full disk. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal: nothing to replace
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(target)
        except BaseException:  # a Ctrl-C, too
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        hint = "check its permissions, those of its directory, and the room on the disk"
        raise ConfigError(f"cannot be written: {error.strerror}", path=str(path), hint=hint) from None
