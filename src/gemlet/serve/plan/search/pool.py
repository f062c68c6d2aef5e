"""Several gpu-lets that serve the same models as one pool: the next free one takes the most urgent batch. Pure.

A model has a turn every T ms, on any of the pool's k gpu-lets. The pool holds if

    T_i + L_i(b_i) + margin <= SLO_i          b_i = ceil(rate_i T_i)
    sum over i of min(1, rate_i T_i) L_i(rate_i T_i) / T_i <= k
    margin = z / k sqrt(sum over i of c_i^2 rate_i T_i)

T is as long as it may be. Batches are larger when a burst has come, up to the largest with 2 L(b) <= SLO. With z = 0 it
is a promise for requests that come evenly, as the cycle of cycle.py is: of one gpu-let and one model it is the rule
2 L(b) <= SLO. The margin is the time that the pool needs for what Poisson arrivals bring above the mean within
a turn; c is what one more request in a batch costs. Of k gpu-lets all work off a burst, whichever model it is of: that
is why a pool sustains more than the same gpu-lets with a model each. z = 3 is what simulated pools and single gpu-lets
serve with 99 % in time, within some 10 % (docs/serving/plan.md).

A batch that runs is not interrupted, so a pool does not sustain bursts where batches that a request cannot wait for
too often leave fewer gpu-lets than the others need.

Gpu-lets of a pool may differ in size: turns count with the harmonic mean of their times, promises with the slowest.
The contention by neighbours is that of their models in the mean over their time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, comb, sqrt
from typing import TYPE_CHECKING, NamedTuple

from gemlet.serve.plan.search import interference
from gemlet.serve.plan.search.interference import Contention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.search.timing import Timing
    from gemlet.serve.profiles.profile import Vector

BURST = 3.0  # standard deviations of the arrivals within a turn
BLOCKED = 0.12  # of the time, at most: with this simulated pools are hardly worse than gpu-lets apart
ROUNDING = 1e-6


class Pool(NamedTuple):
    """Sizes in ticks of gpu-lets that serve the same models, and requests/s of each model on all of them together."""

    ticks: tuple[int, ...]
    rates: Mapping[str, float]


Contentions = Callable[[Pool, int], Contention]  # of a gpu-let of this many ticks of this pool


class Turn(NamedTuple):
    """One model in a pool.

    every_ms: between two turns; worst_ms: of a request that just missed one; busy: gpu-lets at work on it in the mean.
    """

    every_ms: float
    worst_ms: float
    slowdown: float
    busy: float


def turns(
    timing: Timing, pools: Sequence[Pool], contentions: Contentions | None, *, times: float = 1.0
) -> list[dict[str, Turn]] | None:
    """By pool and model, beside each other on a device, for ``times`` the rates; None if a pool does not hold.

    Requests come evenly. A gpu-let of its own is a pool of one. ``contentions``: what neighbours do; None: nothing.
    """
    return _held(timing, pools, _slowdowns(timing, pools, contentions), times=times)


def reserve(
    timing: Timing, pools: Sequence[Pool], contentions: Contentions | None, *, least: float = 0.0, most: float = 4.0
) -> float:
    """How many times the rates these sustain with bursts and all, to some 2 %; ``most`` is enough.

    0.0 if it is not ``least``, which is found out at once.
    """
    slowdowns = _slowdowns(timing, pools, contentions)  # the same however many times: each model's part of the time is

    def sustain(times: float) -> bool:
        return _held(timing, pools, slowdowns, burst=BURST, times=times) is not None

    low, high = least, most
    if least and not sustain(least):
        return 0.0
    if sustain(most):
        return most
    while high - low > max(0.02 * high, 0.005):
        middle = (low + high) / 2
        low, high = (middle, high) if sustain(middle) else (low, middle)
    return low


def _slowdowns(timing: Timing, pools: Sequence[Pool], contentions: Contentions | None) -> list[list[float]]:
    """Of each pool's models, by the neighbours."""
    pressing = [contentions(pool, ticks) for pool in pools for ticks in pool.ticks] if contentions else []
    found, first = [], 0
    for pool in pools:
        others = [*pressing[:first], *pressing[first + 1 :]]
        first += len(pool.ticks)
        found.append([interference.slowdown_beside(_sensitivity(timing, model), others) for model in pool.rates])
    return found


def _held(
    timing: Timing,
    pools: Sequence[Pool],
    slowdowns: Sequence[Sequence[float]],
    *,
    burst: float = 0.0,
    times: float = 1.0,
) -> list[dict[str, Turn]] | None:
    found = []
    for pool, slow in zip(pools, slowdowns, strict=True):
        held = _beside(timing, pool, slow, burst, times)
        if held is None:
            return None
        found.append(held)
    return found


def _sensitivity(timing: Timing, model: str) -> Vector:
    return timing.profiles.models[model].sensitivity


def _beside(
    timing: Timing, pool: Pool, slowdowns: Sequence[float], burst: float, times: float
) -> dict[str, Turn] | None:
    count, smallest = len(pool.ticks), min(pool.ticks)
    models = []
    for (model, rate), slowdown in zip(pool.rates.items(), slowdowns, strict=True):
        slow = timing.row(model, smallest)
        models.append(
            (model, rate * times / 1000, slowdown, slow, timing.capacity(model, smallest, slowdown).batch or 1)
        )
    margin, with_margin = 0.0, False
    while True:
        found, busy, spread = {}, 0.0, 0.0
        for model, rate, slowdown, slow, largest in models:
            every = longest(slow, rate, slowdown, timing.slos[model] - margin)
            if every <= 0:
                return None
            come = rate * every
            turn = mean_time(timing, pool.ticks, model, come) * slowdown
            worst = every + slow[max(1, ceil(come - ROUNDING))] * slowdown
            found[model] = Turn(every, worst, slowdown, min(1.0, come) * turn / every)
            busy += found[model].busy
            spread += (_cost(timing, pool.ticks, model, largest) * slowdown) ** 2 * come
        if busy > count + ROUNDING:
            return None
        if not burst:
            return found
        if with_margin:
            return found if _seldom_blocked(timing, pool, found, slowdowns) else None
        # 0 for models whose batches take the same time whatever their size
        margin, with_margin = burst / count * sqrt(spread), True


def _seldom_blocked(timing: Timing, pool: Pool, found: Mapping[str, Turn], slowdowns: Sequence[float]) -> bool:
    """Whether batches that a request cannot wait for leave the others enough gpu-lets nearly always.

    A batch of L ms that can be borne for ``room`` ms is in the way for L - room of them. How many of the gpu-lets are
    at such batches is taken for binomial.
    """
    count, smallest = len(pool.ticks), min(pool.ticks)
    for model, slowdown in zip(found, slowdowns, strict=True):
        room = timing.slos[model] - timing.row(model, smallest)[1] * slowdown
        in_the_way = others = 0.0
        for turn in found.values():
            batch = turn.worst_ms - turn.every_ms
            if batch > room:
                in_the_way += turn.busy * (1 - room / batch)
            else:
                others += turn.busy
        part, spare = min(1.0, in_the_way / count), int(count - others + ROUNDING)
        if sum(comb(count, n) * part**n * (1 - part) ** (count - n) for n in range(spare + 1, count + 1)) > BLOCKED:
            return False
    return True


def longest(row: Sequence[float], rate: float, slowdown: float, budget: float) -> float:
    """The longest T with T + L(ceil(rate T)) <= budget, in ms; ``rate`` in requests/ms. 0 if there is none."""
    low, high = 0, len(row) - 1
    while low < high:  # the largest batch of which the last request could come in time for it
        middle = (low + high + 1) // 2
        if (middle - 1) / rate + row[middle] * slowdown < budget:
            low = middle
        else:
            high = middle - 1
    return min(low / rate, budget - row[low] * slowdown) if low else 0.0


def mean_time(timing: Timing, ticks: Sequence[int], model: str, batch: float) -> float:
    """Milliseconds of a batch alone on gpu-lets of these sizes that are always at work: the harmonic mean."""
    low = max(1, int(batch))
    rows = [timing.row(model, size) for size in ticks]
    one = len(ticks) / sum(1 / row[low] for row in rows)
    if batch - low <= ROUNDING:  # rate * (batch / rate) may be above the largest batch that there is
        return one
    return one + (batch - low) * (len(ticks) / sum(1 / row[low + 1] for row in rows) - one)


def _cost(timing: Timing, ticks: Sequence[int], model: str, batch: int) -> float:
    one = mean_time(timing, ticks, model, 1)
    return (mean_time(timing, ticks, model, batch) - one) / (batch - 1) if batch > 1 else one


def mean_contention(timing: Timing, pool: Pool, ticks: int) -> Contention:
    """What one of its gpu-lets does to its neighbours in the mean over its time."""
    return interference.mean_contention(timing.profiles, ticks / timing.grid, time_parts(timing, pool))


def time_parts(timing: Timing, pool: Pool) -> dict[str, float]:
    """What part of the time at work each model has, in batches of which two fit into the SLO."""
    times = {}
    for model, rate in pool.rates.items():
        batch = timing.capacity(model, min(pool.ticks)).batch or 1
        times[model] = rate * mean_time(timing, pool.ticks, model, batch) / batch
    whole = sum(times.values())
    return {model: time / whole for model, time in times.items()}
