"""For which batches a model is made ready: pure."""

from __future__ import annotations


def ladder(largest: int) -> list[int]:
    """The batches that are captured, ascending: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... and the largest.

    At most a third of a replayed batch is padding, for about two graphs a doubling.
    """
    steps = {largest}
    power = 1
    while power < largest:
        steps.add(power)
        steps.add(min(largest, power + power // 2))
        power *= 2
    return sorted(steps)
