"""The directory of a repository. The only module of this package that opens files."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from gemlet.config.text_file import read_text
from gemlet.errors import ConfigError
from gemlet.serve.models import built_in
from gemlet.serve.models.specification import ModelError
from gemlet.serve.server.repository import config, native_config, triton_config

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
NATIVE, TRITON = "config.yaml", "config.pbtxt"
Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model's directory as it is now: a specification, or what is wrong. ``stamp`` changes with its files."""

    name: str
    spec: ModelSpec | None
    error: ConfigError | None
    stamp: Stamp


def scan(repository: Path) -> dict[str, ModelDirectory]:
    """Every model directory, in order of name. Raises ConfigError if the repository itself cannot be read."""
    try:
        folders = sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        hint = "a model repository is a directory of DIR/MODEL/config.yaml and DIR/MODEL/1/; see docs/serving.md"
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(repository), hint=hint) from None
    return {folder.name: look(folder) for folder in folders if _can_be_named(folder)}


@functools.cache  # it is checked repeatedly, and reported once
def _can_be_named(folder: Path) -> bool:
    """Whether requests can name it: a name of other bytes than UTF-8, or of control characters, cannot be answered."""
    if folder.name.isprintable():
        return True
    logger.warning("%r is left out: its name is not printable text in UTF-8", str(folder))
    return False


def look(folder: Path) -> ModelDirectory:
    """One model directory."""
    stamp: Stamp = ()
    try:
        stamp = _stamp(folder)
        spec = msgspec.structs.replace(read_model(folder), revision=f"{crc32(repr(stamp).encode()):08x}")
        return ModelDirectory(folder.name, spec, None, stamp)
    except ConfigError as error:
        return ModelDirectory(folder.name, None, error, stamp)
    except OSError as error:  # of a directory that goes or changes in this moment, or is not ours to read
        return ModelDirectory(
            folder.name, None, ConfigError(f"cannot be read: {error.strerror}", path=str(folder)), stamp
        )


def read_model(folder: Path) -> ModelSpec:
    """The model in ``folder``. Raises ConfigError that names file, line and field."""
    folder = folder.absolute()
    ours, theirs = folder / NATIVE, folder / TRITON
    if not ours.exists() and not theirs.exists():
        hint = f"write {NATIVE}; docs/serving.md has an example"
        raise ConfigError(f"there is neither {NATIVE} nor {TRITON}", path=str(folder), hint=hint)
    said = config.Config()
    text = ""
    if theirs.exists():
        said, notes = triton_config.parse(read_text(theirs, regular=True), theirs)
        for note in notes:
            logger.warning("%s: %s", theirs, note)
    if ours.exists():
        text = read_text(ours, regular=True)
        said = config.merged(said, native_config.parse(text, ours))
    try:
        return built_in.completed(config.specification(said, folder, _versions(folder, said)))
    except ModelError as error:
        raise ConfigError(error.message, path=str(ours if ours.exists() else theirs), hint=error.hint) from None
    except config.FieldError as error:
        raise (native_config.located(error, text, ours) if text else config.problem(error, theirs)) from None


def _versions(folder: Path, said: config.Config) -> tuple[int, ...]:
    """The version folders, ascending. A model that has no file needs none, and is version 1 then."""
    there = sorted(int(path.name) for path in folder.iterdir() if re.fullmatch("[0-9]+", path.name) and path.is_dir())
    versions = tuple(version for version in there if version > 0)
    if not versions and said.platform in config.MODEL_FILES.keys() | {None}:
        raise ConfigError("there is no version folder", path=str(folder), hint=f"put the model into {folder.name}/1/")
    return versions or (1,)


def _stamp(folder: Path) -> Stamp:
    """Names, sizes and times of the model's files: what --watch compares."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                status = path.stat()
            except OSError:  # gone in this moment
                continue
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(found)
