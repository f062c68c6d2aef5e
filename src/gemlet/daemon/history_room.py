"""Which groups and devices the recorded history has room for. Pure.

Each has a name on disk for as long as anything is recorded of it, and the oldest moments of all go where there is no
room left. So who makes group after group, or makes up devices, would soon leave nothing of what was recorded of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from gemlet.daemon.history_moment import Values
    from gemlet.daemon.history_store import Key

HOUR = 3600.0
MOST = 256  # groups on a device, of one user in an hour: as many as there may be at a time


class HistoryRoom:
    """``whose``: by whom a group on a device, or with the name "" a device, is counted."""

    def __init__(self, whose: Callable[[Key], Hashable]) -> None:
        self._whose = whose
        self._seen: dict[Hashable, dict[Key, float]] = {}  # by whose they are, when last

    def kept(self, found: Mapping[Key, Values], now: float) -> dict[Key, Values]:
        """Those of ``found`` that are recorded; ``now`` in seconds of a steady clock."""
        self._seen = {
            user: left
            for user, keys in self._seen.items()
            if (left := {key: at for key, at in keys.items() if now - at < HOUR})
        }
        kept = {}
        for key, values in found.items():
            seen = self._seen.setdefault(self._whose(key), {})
            if key in seen or len(seen) < MOST:
                seen[key] = now
                kept[key] = values
        return kept
