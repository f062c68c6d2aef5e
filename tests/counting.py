"""What Python does, counted: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def calls(act: Callable[[], object]) -> int:
    """How many functions ``act`` calls in this thread, those written in C included."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count - 1  # setprofile itself
