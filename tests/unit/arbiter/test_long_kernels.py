"""Beside kernels that are longer than a turn, which the hardware slices with those whose turn it is."""

from __future__ import annotations

import pytest

from gemlet.simulate.workload import SECOND, ProgramSpec
from tests.unit.arbiter.open_device import MS, US, Shared

# The host waits once a step.
LAUNCH_BOUND = ProgramSpec(kind="launch-bound", kernels=64, kernel=100 * US, gap=40 * US, host=1000 * US)
LONG = [ProgramSpec(kernel=64 * MS), ProgramSpec(kernel=147 * MS)]


@pytest.mark.parametrize("minimum", [0.41, 0.6])
@pytest.mark.parametrize("kernels", [(64, 147), (100, 150, 200), (54, 64), (207, 178, 132, 225)])
def test_a_minimum_is_kept_beside_several(kernels, minimum):
    """Beside them it got a half or a third of its turns and paid for the whole: down to a third of its minimum, for as
    long as they ran."""
    others = [ProgramSpec(kernel=ms * MS) for ms in kernels]
    shared = Shared(({"min": minimum}, ProgramSpec(kernel=100 * US)), *others, seconds=9)
    assert min(shared.speeds(0, window=4 * SECOND)) >= 0.8 * minimum  # a turn of the others takes up to 0.9 s


def test_one_that_pauses_has_most_of_its_minimum_beside_several():
    """Its slices are over when it pauses, and each time it waits for those of the others."""
    shared = Shared(({"min": 0.41}, LAUNCH_BOUND), *LONG, seconds=9)
    assert shared.speed(0) >= 0.6 * 0.41


@pytest.mark.parametrize(
    "kernels", [(5, 20), (20, 30), (20, 100), (0.1, 100), (64, 147), (0.1, 64, 147), (100, 150, 200)]
)
@pytest.mark.parametrize("taking_turns", [True, False])
def test_shares_are_equal_whatever_the_kernels(kernels, taking_turns):
    """Of two the one with kernels of 20 ms had 0.56 beside 0.40, those of 30 ms; of three, 0.37 beside 0.25."""
    shared = Shared(*[ProgramSpec(kernel=round(ms * MS)) for ms in kernels], seconds=8, open=not taking_turns)
    speeds = [shared.speed(number) for number in range(len(kernels))]
    assert max(speeds) - min(speeds) <= 0.03
    assert sum(speeds) >= 0.92


def test_what_a_maximum_allows_is_had_beside_several():
    shared = Shared(({"max": 0.1}, ProgramSpec(kernel=1 * MS)), *LONG, seconds=20)
    assert shared.speed(0) == pytest.approx(0.09, abs=0.015)


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_who_runs_beside_one_that_does_not_stop_pays_for_what_it_gets(scene, part):
    """That one's kernel is sliced with it, or its host is stopped and uses nothing."""
    s = scene()
    for name, number in (("late", 1), ("other", 2)):
        s.group(name)
        s.client(number, name, wants=True)
    s.to(s.deadline(1) + 4)
    assert set(s.holders) == {1, 2}
    begin = s.ms
    for ms in range(1, 1001):
        s.to(begin + ms)
        s.progress(2, part * ms)
        s.arbiter.tick(s.now)
    assert s.used("other") == pytest.approx(part * 1000, rel=0.03)


@pytest.mark.parametrize(("kernel", "most"), [(100 * MS, 0.1), (300 * MS, 0.1), (2 * SECOND, 0.3)])
def test_a_maximum_holds_for_kernels_that_run_on_beside_others(kernel, most):
    """It was charged for its part of the time less what the others did in it, and so had 1.55 to 1.7 of its maximum."""
    long = ProgramSpec(kind="launch-bound", kernels=1, kernel=kernel, host=500 * US)
    shared = Shared(({"max": most}, long), ProgramSpec(kernel=200 * US), seconds=22)
    assert 0.8 * most <= shared.outcome.work(0, 2 * SECOND) / (20 * SECOND) <= 1.05 * most
