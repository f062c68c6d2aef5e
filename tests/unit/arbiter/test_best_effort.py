"""Groups of best effort with a minimum, and minima of one class beside others of any."""

from __future__ import annotations

import pytest

from gemlet.simulate.workload import ProgramSpec
from tests.unit.arbiter.open_device import MS, SATURATING, SECOND, US, Shared

FIRST = ProgramSpec(kernel=100 * US)
OTHER = ProgramSpec(kernel=115 * US)
BURSTS = ProgramSpec(kind="bursty", kernel=500 * US, work=13 * MS, think=2 * MS)


@pytest.mark.parametrize("rest", [OTHER, BURSTS], ids=["saturates", "bursts"])
@pytest.mark.parametrize("priority", ["normal", "latency"])
@pytest.mark.parametrize("minimum", [0.3, 0.5, 0.8])
def test_one_that_takes_what_is_left_ends_no_turn_of_a_minimum(minimum, priority, rest):
    """It never ran, so it was the furthest behind, and cut each turn for which the other had waited to have a claim:
    of a minimum of 80 % that left 40 %."""
    claims = {"min": minimum, "priority": "best-effort"}
    shared = Shared(
        (claims, FIRST), ({"priority": priority}, SATURATING), ({"priority": "best-effort", "weight": 8.0}, rest)
    )
    assert shared.speed(0) >= 0.95 * minimum
    assert min(shared.speeds(0)) >= 0.9 * minimum


def test_two_minima_of_best_effort_hold():
    claims = [({"min": minimum, "priority": "best-effort"}, FIRST) for minimum in (0.5, 0.2)]
    shared = Shared(*claims, SATURATING, ({"priority": "best-effort"}, OTHER))
    assert shared.speed(0) >= 0.95 * 0.5
    assert shared.speed(1) >= 0.95 * 0.2
    assert shared.speed(2) >= 0.2


def test_alone_with_its_like_a_minimum_of_best_effort_is_no_more_than_that():
    shared = Shared(
        ({"min": 0.3, "priority": "best-effort"}, FIRST), ({"priority": "best-effort", "weight": 9.0}, OTHER)
    )
    assert shared.speed(0) >= 0.95 * 0.3
    assert shared.speed(1) >= 0.6


def test_who_has_its_minimum_is_owed_nothing():
    """Two of 7 % each paused often and waited for long, so they went before one that lacked most of its 80 %."""
    bursts = ProgramSpec(kind="bursty", kernel=45 * US, work=1636 * US, think=709 * US)
    shared = Shared(
        ({"min": 0.8, "priority": "latency"}, ProgramSpec(kind="bursty", kernel=38 * US, work=31 * MS, think=331 * US)),
        (
            {"min": 0.067, "priority": "best-effort"},
            ProgramSpec(kind="bursty", kernel=65 * US, work=1347 * US, think=505 * US),
        ),
        ({"min": 0.067, "priority": "latency"}, bursts),
        ({"weight": 8.0, "priority": "latency"}, ProgramSpec(kernel=27 * US)),
        seconds=5,
    )
    assert min(shared.speeds(0, SECOND // 2)) >= 0.9 * 0.8
