"""Whole text files, read and written with errors that say what is wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 64 * 1024**2  # a trace of a month in seconds has 20 MB


def read_text(path: Path) -> str:
    """The whole file. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"larger than {MAX_BYTES} bytes", path=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(path), hint="check the spelling") from None
    except UnicodeDecodeError:
        raise ConfigError("not valid UTF-8", path=str(path), hint="save the file as UTF-8") from None


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
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", path=str(path)) from None
