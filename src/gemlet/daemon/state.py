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
    configured: GroupSpec | None = None  # as in the configuration, of a group of it that was changed since

    def entry(self) -> Entry:
        return Entry(
            spec=self.spec,
            origin=self.origin,
            owner=self.owner,
            device=self.device,
            socket=self.socket,
            named=self.named,
        )


def _saved(e: Entry) -> Saved:
    return Saved(spec=e.spec, owner=e.owner, device=e.device, origin=e.origin, socket=e.socket, named=e.named)


def living(entries: Iterable[Entry], configured: Iterable[GroupSpec]) -> list[Saved]:
    """What a successor would not know from its configuration. ``configured``: the groups of this daemon's."""
    files = {spec.name: spec for spec in configured}
    saved = []
    for e in entries:
        mine = _saved(e)
        if e.origin == "configuration" and e.leaving:
            mine.origin = "run"  # it goes with its last client, as it would here
        elif e.origin == "configuration":
            mine.configured = files.get(e.spec.name)
            if mine.configured in (None, e.spec):
                continue
        saved.append(mine)
    return saved


def save(path: Path, entries: Iterable[Entry]) -> None:
    """Writes the groups made on the fly, atomically. Raises OSError."""
    saved = [_saved(e) for e in entries if e.origin != "configuration"]
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(saved))
    os.replace(fresh, path)  # noqa: PTH105


def load(path: Path) -> list[Saved]:
    """The groups an earlier daemon had; none (and a warning) if the file is missing or damaged."""
    try:
        saved = msgspec.json.decode(read_bytes(path, MAX_FILE_BYTES), type=list[Saved])
    except FileNotFoundError:
        return []
    except (OSError, ConfigError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.warning("state file=%s cannot be used: %s", path, error)
        return []
    return saved
