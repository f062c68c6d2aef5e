"""Latency over (SM share, batch), from a few anchors: never falling with the batch nor rising with the share.

Anchors need not fill the grid. Missing corners come from a fit of L = (k1 b^2 + k2 b + k3) / (s + k4) + k5, the form
iGniter (TPDS 2023) uses, with k1..k5 >= 0. Then noise is levelled by isotonic regression in both directions,
which changes no anchor that is already in order. Between grid points the latency is linear in the batch and the
throughput is linear in the share: throughput bends downwards over the share, so a chord of it promises too little
rather than too much. A chord over more than a factor of two promises far too little; there the latency is t0 + c / s,
what does not depend on the SMs and what is divided among them (Amdahl). Below the smallest measured share throughput is
proportional to the share; above the largest measured batch the latency is infinite.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FAR = 2.01  # between shares further apart than this the chord is left; doubled shares are rounded
Point = tuple[float, int, float]  # SM share in (0, 1], batch, milliseconds


class Surface:
    """Latency in milliseconds at any share and batch. Raises ValueError where anchors are none, or make no sense."""

    def __init__(self, anchors: Sequence[Point]) -> None:
        known: dict[tuple[float, int], float] = {}
        for share, batch, ms in anchors:
            if not 0 < share <= 1:
                raise ValueError(f"an anchor's SM share is {share:g}, not in (0, 1]")
            if batch < 1:
                raise ValueError(f"an anchor's batch is {batch}, not at least 1")
            if not 0 < ms < inf:
                raise ValueError(f"the latency at share {share:g}, batch {batch} is {ms:g} ms")
            if (share, batch) in known:
                raise ValueError(f"the anchor at share {share:g}, batch {batch} appears twice")
            known[share, batch] = ms
        if not known:
            raise ValueError("there is no anchor")
        self.shares = sorted({share for share, _ in known})
        self.batches = sorted({batch for _, batch in known})
        fitted = Fit(anchors) if len(known) < len(self.shares) * len(self.batches) else None
        grid = [
            [known[s, b] if (s, b) in known else _given(fitted).latency(s, b) for b in self.batches]
            for s in self.shares
        ]
        self._grid = monotone(grid)

    @property
    def max_batch(self) -> int:
        return self.batches[-1]

    def latency(self, share: float, batch: int) -> float:
        """Milliseconds; infinite for a batch above the largest measured one or without any SM."""
        return self.row(share, batch)[batch] if 0 < batch <= self.max_batch else inf

    def row(self, share: float, max_batch: int | None = None) -> list[float]:
        """Latencies by batch, index 0 unused (0 ms), at one share: what a planner asks for again and again."""
        last = min(max_batch or self.max_batch, self.max_batch)
        if share <= 0:
            return [0.0] + [inf] * last
        at = bisect_left(self.shares, share)
        if at == 0:
            factor = self.shares[0] / share
            return [ms * factor for ms in self._along_batches(0, last)]
        if at == len(self.shares):
            return self._along_batches(at - 1, last)
        low, high = self.shares[at - 1], self.shares[at]
        slow, fast = self._along_batches(at - 1, last), self._along_batches(at, last)
        if high > FAR * low:
            weight = (1 / share - 1 / high) / (1 / low - 1 / high)
            return [b + weight * (a - b) for a, b in zip(slow, fast, strict=True)]
        weight = (share - low) / (high - low)
        return [0.0] + [1 / ((1 - weight) / a + weight / b) for a, b in zip(slow[1:], fast[1:], strict=True)]

    def _along_batches(self, at: int, last: int) -> list[float]:
        values = self._grid[at]
        row = [0.0]
        place = 0
        for batch in range(1, last + 1):
            while self.batches[place] < batch:
                place += 1
            if self.batches[place] == batch or place == 0:  # below the smallest batch: as slow as that one
                row.append(values[place])
                continue
            low, high = self.batches[place - 1], self.batches[place]
            row.append(values[place - 1] + (values[place] - values[place - 1]) * (batch - low) / (high - low))
        return row


class Fit:
    """L = (k1 b^2 + k2 b + k3) / (s + k4) + k5 with k >= 0 and the least squared relative error."""

    def __init__(self, anchors: Sequence[Point]) -> None:
        best = inf
        for step in range(11):
            offset = 0.05 * step
            columns = [
                [value / ms for value in (b * b / (s + offset), b / (s + offset), 1 / (s + offset), 1.0)]
                for s, b, ms in anchors
            ]
            weights = nonnegative_least_squares(columns, [1.0] * len(columns))
            error = sum((sum(w * x for w, x in zip(weights, row, strict=True)) - 1) ** 2 for row in columns)
            if error < best:
                best, self.k4, self.k = error, offset, weights
        self.errors = sorted(abs(self.latency(s, b) / ms - 1) for s, b, ms in anchors)

    def latency(self, share: float, batch: int) -> float:
        k1, k2, k3, k5 = self.k
        return (k1 * batch * batch + k2 * batch + k3) / (share + self.k4) + k5


def nonnegative_least_squares(rows: Sequence[Sequence[float]], aims: Sequence[float]) -> list[float]:
    """x >= 0 with the least |rows x - aims|^2, by coordinate descent on scaled columns; for a handful of unknowns."""
    width = len(rows[0])
    scales = [max(sum(row[i] ** 2 for row in rows) ** 0.5, 1e-300) for i in range(width)]
    gram = [[sum(r[i] * r[j] for r in rows) / scales[i] / scales[j] for j in range(width)] for i in range(width)]
    target = [sum(r[i] * aim for r, aim in zip(rows, aims, strict=True)) / scales[i] for i in range(width)]
    x = [0.0] * width
    for _ in range(2000):
        moved = 0.0
        for i in range(width):
            value = max(0.0, x[i] + target[i] - sum(g * v for g, v in zip(gram[i], x, strict=True)))
            moved = max(moved, abs(value - x[i]))
            x[i] = value
        if moved < 1e-12:
            break
    return [value / scale for value, scale in zip(x, scales, strict=True)]


def monotone(grid: Sequence[Sequence[float]]) -> list[list[float]]:
    """The nearest grid that does not fall along a row (batch) nor rise down a column (share): Dykstra's projections."""
    now = [list(row) for row in grid]
    if _in_order(now):
        return now
    by_row = [[0.0] * len(row) for row in now]
    by_column = [[0.0] * len(row) for row in now]
    for _ in range(50):
        before = [list(row) for row in now]
        for i, row in enumerate(now):
            raised = [a + c for a, c in zip(row, by_row[i], strict=True)]
            now[i] = isotonic(raised)
            by_row[i] = [a - b for a, b in zip(raised, now[i], strict=True)]
        for j in range(len(now[0])):
            raised = [row[j] + by_column[i][j] for i, row in enumerate(now)]
            flat = isotonic(raised[::-1])[::-1]
            for i, value in enumerate(flat):
                by_column[i][j] = raised[i] - value
                now[i][j] = value
        if max(abs(a - b) for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True)) < 1e-9:
            break
    return _rising(now)


def isotonic(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: pool adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            last, size = blocks.pop()
            mean, count = (mean * count + last * size) / (count + size), count + size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def _in_order(grid: Sequence[Sequence[float]]) -> bool:
    along = all(a <= b for row in grid for a, b in pairwise(row))
    down = all(a >= b for high, low in pairwise(grid) for a, b in zip(high, low, strict=True))
    return along and down


def _rising(grid: list[list[float]]) -> list[list[float]]:
    """Removes what rounding left: each cell at least its left and its lower neighbour."""
    for i in range(len(grid) - 1, -1, -1):
        for j in range(len(grid[0])):
            left = grid[i][j - 1] if j else 0.0
            below = grid[i + 1][j] if i + 1 < len(grid) else 0.0
            grid[i][j] = max(grid[i][j], left, below)
    return grid


def _given(fitted: Fit | None) -> Fit:
    assert fitted is not None
    return fitted
