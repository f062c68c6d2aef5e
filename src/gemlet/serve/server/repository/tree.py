"""The directory of a repository. The only module of this package that opens files, but for completion.py."""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from gemlet.config.text_file import read_text
from gemlet.errors import ConfigError
from gemlet.inference_protocol import model_config_pb2
from gemlet.serve.models import built_in
from gemlet.serve.models.specification import ModelError
from gemlet.serve.server.repository import completion, config, native_config, triton_config

if TYPE_CHECKING:
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
LOST = "lost+found"  # at the root of a file system, which a volume of its own is
VERSION = re.compile("[0-9]{1,18}")  # what is longer is no number that messages have
NATIVE, TRITON = "config.yaml", "config.pbtxt"
MAX_CONFIG_BYTES = 1024**2  # takes a second or two to read; what people write has some thousand
Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model's directory as it is now: the versions to serve, ascending, or what is wrong.

    ``stamp`` changes with its files.
    """

    name: str
    specs: tuple[ModelSpec, ...]
    error: ConfigError | None
    stamp: Stamp


def scan(repository: Path) -> dict[str, ModelDirectory]:
    """Every model directory, in order of name. Raises ConfigError if the repository itself cannot be read."""
    return {folder.name: look(folder) for folder in _folders(repository)}


def stamps(repository: Path) -> dict[str, Stamp]:
    """Of every model directory, by name. Nothing is read, nor asked of a model's code. Raises ConfigError."""
    found: dict[str, Stamp] = {}
    for folder in _folders(repository):
        try:
            found[folder.name] = _stamp(folder)
        except OSError:  # as look() takes it
            found[folder.name] = ()
    return found


def _folders(repository: Path) -> list[Path]:
    """Raises ConfigError."""
    try:
        there = (path for path in repository.iterdir() if not path.name.startswith(".") and path.name != LOST)
        folders = sorted(path for path in there if path.is_dir())
    except OSError as error:
        hint = "name a directory with DIR/MODEL/config.yaml and DIR/MODEL/1/; see docs/serving/models.md"
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(repository), hint=hint) from None
    return [folder for folder in folders if _can_be_named(folder)]


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
        specs = [msgspec.structs.replace(spec, revision=_revision(stamp, spec.version)) for spec in read_model(folder)]
        return ModelDirectory(folder.name, tuple(specs), None, stamp)
    except ConfigError as error:
        return ModelDirectory(folder.name, (), error, stamp)
    except OSError as error:  # of a directory that goes or changes in this moment, or is not ours to read
        return ModelDirectory(
            folder.name, (), ConfigError(f"cannot be read: {error.strerror}", path=str(folder)), stamp
        )


def read_model(folder: Path) -> tuple[ModelSpec, ...]:
    """The versions to serve of the model in ``folder``, ascending. Raises ConfigError that names file, line, field."""
    folder = folder.absolute()
    ours, theirs = folder / NATIVE, folder / TRITON
    if not ours.exists() and not theirs.exists() and not completion.can_tell(folder):
        hint = f"write {NATIVE}; docs/serving/models.md has an example"
        raise ConfigError(f"there is neither {NATIVE} nor {TRITON}", path=str(folder), hint=hint)
    said = config.Config()
    message = model_config_pb2.ModelConfig()
    text = ""
    if theirs.exists() or not ours.exists():
        if theirs.exists():
            message, notes = triton_config.read(read_text(theirs, regular=True, most=MAX_CONFIG_BYTES), theirs)
            for note in notes:
                logger.warning("%s: %s", theirs, note)
        message = completion.completed(message, folder)
        said = triton_config.said(message, theirs)
    if ours.exists():
        text = read_text(ours, regular=True, most=MAX_CONFIG_BYTES)
        said = config.merged(said, native_config.parse(text, ours))
    elif said.slo is None and said.slo_ms is None and said.service_class is None:
        said = msgspec.structs.replace(said, service_class="throughput")  # no request is too late for Triton
    try:
        versions = config.served_versions(said, _versions(folder, said))
        return tuple(
            msgspec.structs.replace(_version(said, message, folder, version), latest=version == versions[-1])
            for version in versions
        )
    except ModelError as error:
        raise ConfigError(error.message, path=str(ours if ours.exists() else theirs), hint=error.hint) from None
    except config.FieldError as error:
        raise (native_config.located(error, text, ours) if text else config.problem(error, theirs)) from None


def _version(said: config.Config, message: model_config_pb2.ModelConfig, folder: Path, version: int) -> ModelSpec:
    """Raises ModelError, FieldError."""
    spec = built_in.completed(config.specification(said, folder, version))
    if spec.platform in config.BY_CODE and completion.is_for_triton(folder / str(version) / (spec.file or "model.py")):
        spec = config.for_triton(spec, triton_config.for_model(message, spec))
    return config.check_optional(spec)


def _versions(folder: Path, said: config.Config) -> tuple[int, ...]:
    """The version folders, ascending. A model that has no file needs none, and is version 1 then."""
    there = {int(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name) and path.is_dir()}
    versions = tuple(sorted(version for version in there if version > 0))
    if not versions and said.platform in config.MODEL_FILES.keys() | {None}:
        raise ConfigError("there is no version folder", path=str(folder), hint=f"put the model into {folder.name}/1/")
    return versions or (1,)


def _revision(stamp: Stamp, version: int) -> str:
    """Of one version: changes with its own files and with those that no version has for itself."""
    own = (entry for entry in stamp if (first := entry[0].partition("/")[0]) == str(version) or not first.isdecimal())
    found = 0
    for entry in own:  # all at once would hold up other threads
        found = crc32(repr(entry).encode(), found)
    return f"{found:08x}"


def _stamp(folder: Path) -> Stamp:
    """Names, sizes, times and permissions of the model's files: what --watch compares.

    A version may be a link to a folder elsewhere, whose files are the model's. Other links to folders are told by where
    they lead: what is there may be all of a file system.
    """
    found: list[tuple[str, int, int, int]] = []
    inner = [""]
    for within in inner:  # and what is added meanwhile: folders may be deeper than functions
        try:
            entries = os.scandir(folder / within)
        except OSError:
            if not within:
                raise
            continue  # gone in this moment, not ours to read, or too long a name
        with entries:
            for entry in entries:
                if entry.name != "__pycache__":
                    _look_at(entry, f"{within}{entry.name}", found, inner)
    return tuple(sorted(found))


def _look_at(entry: os.DirEntry[str], name: str, found: list[tuple[str, int, int, int]], inner: list[str]) -> None:
    """Adds it to what was ``found``, or to the folders ``inner`` that are yet to be looked into."""
    try:
        status = entry.stat()
        if stat.S_ISREG(status.st_mode):
            found.append((name, status.st_size, status.st_mtime_ns, status.st_mode))
        elif stat.S_ISDIR(status.st_mode):
            link = entry.is_symlink()
            if link:
                found.append((f"{name}/ -> {Path(entry.path).readlink()}", 0, 0, 0))
            if not link or VERSION.fullmatch(name):
                inner.append(f"{name}/")
    except OSError:  # gone in this moment, or a link that leads nowhere
        pass
