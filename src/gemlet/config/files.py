"""Loads and saves whole configuration files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from gemlet.config import client_table, gemlet_toml, keyfile
from gemlet.config.render import render
from gemlet.config.report import Source
from gemlet.config.text_file import read_bytes
from gemlet.errors import ConfigError, GemletError
from gemlet.model import Configuration

MAX_FILE_BYTES = 4 * 1024**2  # about fifty thousand groups; whatever is larger is not a configuration

Reader = Callable[[Source], Configuration]


def load(path: str | os.PathLike[str]) -> Configuration:
    """The configuration in the file at ``path``, in whichever of the three formats it is.

    Raises ConfigError if the file cannot be read or anything in it is wrong; ``others`` of the error has the rest.
    """
    return parse(_read(os.fspath(path)), os.fspath(path))


def parse(text: str, path: str) -> Configuration:
    """As load(), for a ``text`` that is in memory; ``path`` goes into messages, and its ending may tell the format."""
    source = Source(text, path)
    try:
        return reader_of(source)(source)
    except GemletError:
        raise
    except Exception as error:  # whatever is in a file, a daemon keeps the good one it has
        hint = "simplify the file; if it is what docs/configuration.md describes, report this"
        raise ConfigError(f"cannot be understood: {type(error).__name__}: {error}", path=path, hint=hint) from error


def reader_of(source: Source) -> Reader:
    """The format of ``source``: by its ending if that is .toml, else by its content, by the ending where it is empty.

    Gemini's two formats have no ending of their own, and people rename files.
    """
    if source.path.endswith(".toml"):
        return gemlet_toml.read
    significant = [line.strip() for line in source.lines() if line.strip() and line.strip()[0] not in "#;"]
    if not significant:
        return client_table.read if source.path.endswith(".txt") else keyfile.read
    if re.fullmatch(r"[0-9]+(\s*[#;].*)?", significant[0]):
        return client_table.read
    if any(re.match(r"(MinUtil|MaxUtil|MemoryLimit)\s*=", line) for line in significant):
        return keyfile.read
    if any(re.match(r"\[\[|\[(groups|daemon)\b", line) for line in significant):
        return gemlet_toml.read
    return client_table.read if source.path.endswith(".txt") else keyfile.read


def _read(path: str) -> str:
    try:
        content = read_bytes(Path(path), MAX_FILE_BYTES)
    except (OSError, ValueError) as error:  # a path with a NUL
        problem = error.strerror if isinstance(error, OSError) else error
        hint = "check the spelling" if isinstance(error, FileNotFoundError) else None
        raise ConfigError(f"cannot be read: {problem}", path=path, hint=hint) from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        place = Source(content[: error.start].decode(), path).place(len(content[: error.start].decode()))
        raise ConfigError(
            "not valid UTF-8", path=path, line=place.line, column=place.column, hint="save the file as UTF-8"
        ) from None


def save(configuration: Configuration, path: str | os.PathLike[str]) -> None:
    """Writes ``configuration`` as gemlet.toml, so that at any moment the old or the new file is there, whole.

    Comments of the old file are lost. Its mode and owner are kept, and a symbolic link still leads to it. Raises
    ConfigError and leaves the old file if there is no room or no permission, or if it is in one of Gemini's formats.
    """
    target = Path(os.path.realpath(path))
    check_can_save(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        _write(temporary, target, render(configuration).encode())
        temporary.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        hint = {
            errno.ENOSPC: "the disk is full; make room and try again",
            errno.EDQUOT: "your quota is used up; make room and try again",
            errno.EACCES: f"the directory {target.parent} must be writable: the file is replaced as a whole",
            errno.ENOENT: f"create the directory {target.parent} first",
        }.get(error.errno or 0)
        message = f"cannot be saved: {error.strerror}; the old file is unchanged"
        raise ConfigError(message, path=str(path), hint=hint) from None


def check_can_save(path: str | os.PathLike[str]) -> None:
    """Raises `ConfigError` if there is a file of a format that is only read, or one that cannot be read."""
    target = Path(os.path.realpath(path))
    if target.suffix == ".toml" or not target.exists():
        return
    if reader_of(Source(_read(str(target)), str(target))) is not gemlet_toml.read:
        hint = f"save to {target.with_name('gemlet.toml')} and start the daemon with it"
        raise ConfigError(
            "is in a format of Gemini, which gemlet reads but does not write", path=str(target), hint=hint
        )


def _write(temporary: Path, target: Path, content: bytes) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            old = target.stat()
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            with contextlib.suppress(PermissionError):  # only root may give a file away
                os.fchown(descriptor, old.st_uid, old.st_gid)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # without it the new name may be lost in a power cut
    finally:
        os.close(descriptor)
