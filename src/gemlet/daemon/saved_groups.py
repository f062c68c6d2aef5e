"""The groups made by `gemlet run` and the shares, kept on disk, so that limits survive a killed daemon.

Without this a program that reconnects to the next daemon would find its group gone and run without its limits. With
each group are the processes that asked for it: what they start later is in it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.group_entry import Entry, Origin
from gemlet.daemon.launchers import Told
from gemlet.model import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.daemon.launchers import Launchers
    from gemlet.daemon.state_file import StateFile


class Saved(msgspec.Struct, kw_only=True):
    """One group as it lies in the file."""

    spec: GroupSpec
    owner: int | None
    device: int | None
    origin: Origin = "run"
    socket: str | None = None
    devices: tuple[str, ...] = ()
    named: bool = True
    launchers: list[Told] = []
    configured: GroupSpec | None = None  # as in the configuration, of a group of it that was changed since

    def entry(self) -> Entry:
        return Entry(
            spec=self.spec,
            origin=self.origin,
            owner=self.owner,
            device=self.device,
            socket=self.socket,
            devices=self.devices,
            named=self.named,
        )


def _saved(e: Entry, launchers: Launchers) -> Saved:
    return Saved(
        spec=e.spec,
        owner=e.owner,
        device=e.device,
        origin=e.origin,
        socket=e.socket,
        devices=e.devices,
        named=e.named,
        launchers=launchers.told(e.launchers),
    )


def living(entries: Iterable[Entry], configured: Iterable[GroupSpec], launchers: Launchers) -> list[Saved]:
    """What a successor would not know from its configuration. ``configured``: the groups of this daemon's."""
    files = {spec.name: spec for spec in configured}
    saved = []
    for e in entries:
        mine = _saved(e, launchers)
        if e.origin == "configuration" and e.leaving:
            mine.origin = "run"  # it goes with its last client, as it would here
        elif e.origin == "configuration":
            mine.configured = files.get(e.spec.name)
            if mine.configured in (None, e.spec):
                continue
        saved.append(mine)
    return saved


def save(file: StateFile, entries: Iterable[Entry], launchers: Launchers) -> bool:
    """Writes the groups made on the fly, atomically. False if they could not be written."""
    return file.write(msgspec.json.encode([_saved(e, launchers) for e in entries if e.origin != "configuration"]))


def load(file: StateFile) -> list[Saved]:
    """The groups an earlier daemon had; none (and a warning) if the file is missing or damaged."""
    return file.load(list[Saved]) or []
