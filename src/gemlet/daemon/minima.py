"""Which minimum a group may have beside the others. Pure.

A minimum is a guarantee, so those that may meet on one device must not come to more than the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share
from gemlet.config.rules import SLACK
from gemlet.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Minimum:
    """What a group holds, or asks for. ``share``: of a device's time; ``device``: the only one where it holds, None:
    every one."""

    group: str
    share: float
    device: int | None = None


def rivals(asked: Minimum, held: Iterable[Minimum]) -> list[Minimum]:
    """Those of ``held`` that leave less for ``asked``: of its device, or where it may be on every one, of that on which
    they leave least."""
    met = [
        other
        for other in held
        if other.group != asked.group
        and other.share > 0
        and (other.device is None or asked.device is None or other.device == asked.device)
    ]
    places = sorted({other.device for other in met if other.device is not None})
    there = ([other for other in met if other.device in (None, place)] for place in places)
    return min(there, key=_left, default=met)


def fits(asked: Minimum, held: Iterable[Minimum]) -> bool:
    """Whether it can be kept beside ``held``; no minimum at all always can."""
    return asked.share <= 0 or asked.share <= _left(rivals(asked, held)) + SLACK


def refusal(asked: Minimum, held: Iterable[Minimum]) -> Refused:
    """The error for one that does not fit: who holds what, and what could be had instead."""
    others = rivals(asked, held)
    holders = " and ".join(f"{other.group} holds {format_share(other.share)}" for other in others)
    percent = int(max(0.0, _left(others)) * 100 + 1e-6)
    if percent:
        hint = f"ask for --min {percent}% or less, or for another device with `gemlet run --device`"
    else:
        hint = (
            "leave out --min, lower the minimum of another group with `gemlet set`, "
            "or ask for another device with `gemlet run --device`"
        )
    return Refused(f"the minimum {format_share(asked.share)} cannot be guaranteed: {holders}", hint=hint)


def _left(others: Iterable[Minimum]) -> float:
    return 1 - math.fsum(other.share for other in others)
