"""The groups made by `gemlet run` and the shares, kept on disk, so that limits survive a killed daemon.

Without this a program that reconnects to the next daemon would find its group gone and run without its limits.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from gemlet.config.text_file import read_bytes
from gemlet.daemon.groups import Entry, Origin
from gemlet.errors import ConfigError
from gemlet.model import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 * 1024**2  # a thousand groups take one


class Saved(msgspec.Struct, kw_only=True):
    """One group as it lies in the file."""

    spec: GroupSpec
    owner: int | None
    device: int | None
    origin: Origin = "run"
    socket: str | None = None
    named: bool = True


def save(path: Path, entries: Iterable[Entry]) -> None:
    """Writes the groups made on the fly, atomically. Raises OSError."""
    saved = [
        Saved(spec=e.spec, owner=e.owner, device=e.device, origin=e.origin, socket=e.socket, named=e.named)
        for e in entries
        if e.origin != "configuration"
    ]
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(saved))
    os.replace(fresh, path)  # noqa: PTH105


def load(path: Path) -> list[Entry]:
    """The groups an earlier daemon had; none (and a warning) if the file is missing or damaged."""
    try:
        saved = msgspec.json.decode(read_bytes(path, MAX_FILE_BYTES), type=list[Saved])
    except FileNotFoundError:
        return []
    except (OSError, ConfigError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.warning("state file=%s cannot be used: %s", path, error)
        return []
    return [
        Entry(spec=g.spec, origin=g.origin, owner=g.owner, device=g.device, socket=g.socket, named=g.named)
        for g in saved
    ]
