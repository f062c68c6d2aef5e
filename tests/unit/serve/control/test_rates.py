"""Rates from counts against the processes the counts come from."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.load import arrivals
from gemlet.serve.control.rates import Meter
from gemlet.serve.control.targets import Target
from gemlet.serve.plan.model import Demand

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.5
LOOK_S = 0.1  # of the controller


def counts(
    rate: arrivals.Rate, seconds: float, spread: arrivals.Spread = "poisson", variation: float = 1.0, seed: int = 1
):
    times = arrivals.times(rate, arrivals.gaps(spread, variation, random.Random(seed)), seconds)
    bins = [0] * round(seconds / TICK_S)
    for time in times:
        bins[int(time / TICK_S)] += 1
    return bins


def metered(start: float, bins: list[int]) -> Meter:
    meter = Meter.of(start)
    for count in bins:
        meter.add(count, TICK_S)
    return meter


def test_a_constant_rate_is_found_from_a_wrong_start() -> None:
    meter = metered(10, counts(arrivals.constant(1000), 60))
    assert meter.slow == pytest.approx(1000, rel=0.03)
    assert meter.ahead(5) == pytest.approx(1000, rel=0.1)


def test_a_ramp_is_seen_ahead() -> None:
    steps = arrivals.trace([1000 + 50 * second for second in range(60)], 1.0)
    meter = metered(1000, counts(steps, 60, "uniform"))
    assert meter.trend == pytest.approx(50, rel=0.1)
    assert meter.ahead(5) == pytest.approx(1000 + 50 * 65, rel=0.02)  # the averages alone would say 3500


def test_without_a_ramp_there_is_no_trend() -> None:
    meters = [metered(500, counts(arrivals.constant(500), 30, seed=seed)) for seed in range(20)]
    assert sum(meter.trend != 0 for meter in meters) <= 1


@pytest.mark.parametrize(("spread", "variation"), [("uniform", 0.0), ("poisson", 1.0), ("gamma", 2.0), ("gamma", 4.0)])
def test_unevenness_is_that_of_the_gaps(spread: arrivals.Spread, variation: float) -> None:
    meter = metered(400, counts(arrivals.constant(400), 300, spread, variation))
    assert meter.variation == pytest.approx(max(1.0, variation), rel=0.2)


def test_a_step_of_the_rate_is_not_unevenness() -> None:
    meter = metered(1000, counts(arrivals.Steps((0.0, 60.0), (1000.0, 3000.0)), 61))
    assert meter.variation < 1.4


@given(rate=st.floats(1, 5000), wrong=st.floats(0.9, 1.0))
def test_even_arrivals_within_the_target_never_move_it(rate: float, wrong: float) -> None:
    target = Target.of(Demand(model="m", rate=rate, slo_ms=10), floor=1, down_after_s=30)
    sent = 0
    for tick in range(1, 240):
        total = int(rate * wrong * tick * TICK_S)
        target.add(tick * TICK_S, total - sent, TICK_S)
        sent = total
        if tick % 10 == 0:
            target.review(5)
    assert target.demand.rate == pytest.approx(max(1, rate))


def moves(rate: Callable[[float], float], guess: float, seconds: float) -> list[tuple[float, float]]:
    """(second, new rate) of each move of a target that looks as the controller does; arrivals are even."""
    target = Target.of(Demand(model="m", rate=guess, slo_ms=10), floor=1, down_after_s=30)
    owed, found = 0.0, []
    for tick in range(1, round(seconds / LOOK_S) + 1):
        owed += rate(tick * LOOK_S) * LOOK_S
        target.add(tick * LOOK_S, int(owed), LOOK_S)
        owed -= int(owed)
        if tick % 25 == 0 and target.review(5):
            found.append((tick * LOOK_S, target.demand.rate))
    return found


@pytest.mark.parametrize(
    ("rate", "wrong"),
    [
        (1.4241057638799868, 1.7975127050331354),
        (1.7206500916619927, 2.571876251790142),
        (1.1642737366772704, 2.9560343739679187),
        (2.5061235108097897, 2.2638749099303666),
        (8.373875253523181, 0.37131334732486515),
    ],
)
def test_a_rate_on_an_edge_of_its_target_does_not_cross_it_late(rate: float, wrong: float) -> None:
    """Found by chance: the ripple of the averages took these over an edge after 100 s or more."""
    assert [second for second, _ in moves(lambda _second: rate, rate * wrong, 600) if second > 100] == []


@pytest.mark.parametrize(("rate", "end"), [(5.0, 0.4), (200.0, 0.7), (200.0, 2.0)])
def test_a_rate_that_moves_slowly_is_followed_however_long_its_target_held(rate: float, end: float) -> None:
    def drifting(second: float) -> float:
        return rate * (1 + (end - 1) * max(0.0, min(1.0, (second - 600) / 1800)))

    found = moves(drifting, rate, 3000)
    assert found
    assert all(second > 600 for second, _ in found)
    assert found[-1][1] == pytest.approx(rate * end, rel=0.2 if rate > 10 else 0.5)


def test_chance_hardly_ever_moves_a_target() -> None:
    moved = 0
    for seed in range(10):
        target = Target.of(Demand(model="m", rate=300, slo_ms=10), floor=1, down_after_s=30)
        for tick, count in enumerate(counts(arrivals.constant(300), 300, seed=seed)):
            target.add(tick * TICK_S, count, TICK_S)
            moved += tick % 5 == 0 and target.review(5) and target.demand.rate != 300
    assert moved <= 2


def test_a_rate_clearly_above_the_target_moves_it_once() -> None:
    target = Target.of(Demand(model="m", rate=5000, slo_ms=10), floor=1, down_after_s=30)
    moved = 0
    for tick in range(600):
        target.add(tick * TICK_S, round(5150 * TICK_S), TICK_S)
        moved += tick % 5 == 0 and target.review(5)
    assert moved == 1
    assert target.demand.rate == pytest.approx(1.05 * 5150, rel=0.02)


def test_down_only_after_a_while_up_at_once() -> None:
    target = Target.of(Demand(model="m", rate=1000, slo_ms=10), floor=1, down_after_s=30)
    for tick in range(40):
        target.add(tick * TICK_S, 100, TICK_S)
    assert not target.review(5)
    for tick in range(40, 140):
        target.add(tick * TICK_S, 100, TICK_S)
    assert target.review(5)
    assert target.demand.rate == pytest.approx(200, rel=0.25)
    for tick in range(140, 150):
        target.add(tick * TICK_S, 500, TICK_S)
    assert target.review(5)
    assert target.demand.rate > 800
