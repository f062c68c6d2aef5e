"""Whose MPS control daemon lives in a pipe directory that others name or made: a caller of the API, or CUDA's default.

To open a file there may take for ever: the directory may be a link into a file system that is mounted at the first
look, or whose server is gone. So it is looked at in a thread, and a caller's directories hold up the caller alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.daemon.aside import Aside
from gemlet.devices.mps import control_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gemlet.devices.mps import Process

PATIENCE = 1.0  # seconds; a look takes 0.1 ms
MOST_WAITING = 64  # looks of one caller; beyond them nothing is found


class PipeDirectories:
    """``look``: the living control daemon of a directory; may block."""

    def __init__(self, look: Callable[[str], Process | None] = control_of) -> None:
        self._look = look
        self._aside = Aside("pipe directories")

    async def find(
        self, places: Iterable[str], *, asked_by: int | None, patience: float = PATIENCE
    ) -> dict[str, Process]:
        """The control daemons in ``places``, as far as that is known in time. ``asked_by``: the uid that named them,
        None for nobody.
        """
        found: dict[str, Process] = {}

        def look_at(place: str) -> None:
            if control := self._look(place):
                found[place] = control

        for place in dict.fromkeys(places):
            if self._aside.waiting(asked_by) < MOST_WAITING:
                self._aside.do(lambda place=place: look_at(place), lane=asked_by)  # type: ignore[misc]
        await self._aside.settle(patience, lane=asked_by)
        return dict(found)
