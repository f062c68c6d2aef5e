"""What is done once in the next turn of the event loop, however often it is asked for until then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Soon:
    """``act`` is called in the event loop."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._asked = False

    def __call__(self) -> None:
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._now)

    def _now(self) -> None:
        self._asked = False
        self._act()
