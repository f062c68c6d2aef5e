"""Whose the time is in which a device was busy. Pure.

What a group is charged for is not it: a program that was stopped in its turn is charged until the turn is over, and one
whose work waits for a processor of the host for the wait. What programs completed is not it either: a kernel that was
sliced counts for as long as it seemed to take, and programs may write what they please. So a group has the less of both
first; by kernels of known lengths on the simulated machine that was nearer than either alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def divide(
    busy: float, charged: Sequence[float], completed: Sequence[float], *, outside: bool
) -> tuple[list[float], float]:
    """The parts of ``busy`` seconds of the groups, and what is none of theirs. The parts and the rest sum to ``busy``.

    ``charged``, ``completed``: seconds of each group in the same time. ``outside``: other programs use the device, too;
    they have what the groups cannot have used. Without them, and with groups that used anything, there is no rest.
    """
    parts = [min(much, own) for much, own in zip(charged, completed, strict=True)]
    used = sum(parts)
    # What is left goes to those that completed more than they were charged for, then to those that were charged more.
    for sign in (1.0, -1.0):
        beyond = [max(0.0, sign * (own - much)) for much, own in zip(charged, completed, strict=True)]
        wanted = sum(beyond)
        part = min(1.0, max(0.0, busy - used) / wanted) if wanted > 0 else 0.0
        parts = [own + part * more for own, more in zip(parts, beyond, strict=True)]
        used = sum(parts)
    if used <= busy and (outside or used <= 0):
        return parts, max(0.0, busy - used)
    return [own * (busy / used) for own in parts], 0.0
