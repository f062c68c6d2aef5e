"""Quantiles of latencies, and a distribution in few numbers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where a distribution is kept: each percent, above 0.9 each thousandth, above 0.99 each ten-thousandth, the largest.
GRID = [
    *(i / 100 for i in range(90)),
    *(i / 1000 for i in range(900, 990)),
    *(i / 10_000 for i in range(9900, 10_000)),
    1.0,
]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest of ``values`` that at least the fraction q of them does not pass (nearest rank, nothing made up).

    ``values`` need not be sorted. Raises ValueError if there are none.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    # Integers, so that 0.99 of 100 values is the 99th and not, by rounding of 0.99 * 100, the 100th.
    rank = -(-round(q * 1_000_000) * len(ordered) // 1_000_000)
    return ordered[max(0, min(len(ordered), rank) - 1)]


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """(q, quantile) over `GRID`, without points that say nothing new."""
    ordered = sorted(values)
    points: list[tuple[float, float]] = []
    for q in GRID:
        at = (q, round(quantile(ordered, q), 1))
        if len(points) >= 2 and points[-1][1] == points[-2][1] == at[1]:
            points[-1] = at
        else:
            points.append(at)
    return points
