"""What gangs leave to others that share one of their devices: minima, whatever share the gang has on its other ones."""

from __future__ import annotations

import pytest

from gemlet.simulate.workload import MICROSECOND, MILLISECOND, SECOND, ProgramSpec
from tests.unit.arbiter.gang_host import DDP, FSDP, SATURATING, TENSOR, Jobs

US, MS = MICROSECOND, MILLISECOND
BOTH, FIRST = (0, 1), (0,)
BEST_EFFORT = {"priority": "best-effort"}


@pytest.mark.parametrize(
    ("gang", "single"),
    [(BEST_EFFORT, {}), (BEST_EFFORT, {"min": 0.9}), ({}, {"min": 1.0})],
    ids=["best-effort", "minimum", "all"],
)
def test_a_gang_that_is_due_nothing_on_one_device_takes_nothing_there(gang, single):
    """Only its other device counted, of which it is due everything, and the single program got a hundredth."""
    jobs = Jobs((FSDP, BOTH, gang), (SATURATING, FIRST, single)).run()
    assert min(jobs.speeds(1, start=SECOND)) >= 0.97


def test_a_gang_without_a_minimum_leaves_the_others_theirs():
    """The single program got nothing."""
    minima = {"min": 0.9}, {"min": 0.1}
    jobs = Jobs((FSDP, BOTH), (FSDP, BOTH, minima[0]), (SATURATING, FIRST, minima[1])).run()
    assert jobs.speed(1, SECOND) >= 0.88
    assert jobs.speed(2, SECOND) >= 0.08


@pytest.mark.parametrize("kind", [DDP, FSDP, TENSOR], ids=["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("count", [4, 7, 8])
def test_a_minimum_holds_beside_many_gangs_of_small_shares(kind, count):
    """Ranks waited for each other on the devices for ever, in slices that took half of the single program's time."""
    small = [(kind, BOTH, {"weight": 0.1 / count})] * count
    jobs = Jobs(*small, (SATURATING, FIRST, {"min": 0.9}), seconds=4).run()
    assert jobs.speed(count, SECOND) >= 0.87


@pytest.mark.parametrize("kind", [DDP, FSDP, TENSOR], ids=["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("least", [0.0, 0.95, 1.0])
def test_a_best_effort_gang_has_no_trials_in_slices_that_would_cost_the_other_its_share(kind, least):
    """It was due nothing, so it did not count where slices were thought to do: in each second with a trial 0.87."""
    jobs = Jobs((kind, BOTH, BEST_EFFORT), (kind, BOTH, {"min": least}), seconds=4).run()
    assert min(jobs.speeds(1, start=SECOND)) >= 0.97


def test_a_gang_to_which_minima_leave_nothing_does_not_wait_for_ever():
    """Its slots fitted beside those of the others only if these had less than their minima."""
    half = (FSDP, BOTH, {"min": 0.5})
    jobs = Jobs((FSDP, BOTH), half, half, seconds=5).run()
    assert jobs.speed(0, SECOND) > 0
    for number in (1, 2):
        assert jobs.speed(number, SECOND) == pytest.approx(0.5, abs=0.02)


def _bursts(work, think):
    return ProgramSpec(kind="bursty", kernel=30 * US, work=round(work * MS), think=think * MS)


@pytest.mark.parametrize(
    ("work", "think", "least", "floor"),
    # Of the speed alone, before: 0.23, 0.22, 0.30 and 0.08 in the worst second.
    [(5, 13, 0.5, 0.5), (5, 2, 0.8, 0.6), (1, 10, 0.8, 0.75), (0.2, 2, 0.5, 0.38)],
)
@pytest.mark.parametrize("host", [0, MS])
def test_one_that_pauses_has_its_minimum_beside_two_gangs(work, think, least, floor, host):
    """It comes back in the slot of one, and pauses again when the time comes that slots leave to it."""
    ranks = ProgramSpec(kind="ranks", kernel=50 * US, kernels=40, gap=15 * US, layers=4, collective=200 * US, host=host)
    jobs = Jobs((ranks, BOTH), (ranks, BOTH), (_bursts(work, think), FIRST, {"min": least}), seconds=4).run()
    assert min(jobs.speeds(2, start=SECOND)) >= floor


@pytest.mark.parametrize(("work", "think"), [(5, 13), (5, 2), (1, 10), (0.2, 2)])
def test_a_slot_that_ends_for_one_that_pauses_takes_no_gangs_minimum(work, think):
    ranks = ProgramSpec(kind="ranks", kernel=50 * US, kernels=40, gap=15 * US, layers=4, collective=200 * US, host=0)
    gangs = (ranks, BOTH, {"min": 0.6}), (ranks, BOTH, {"min": 0.1})
    jobs = Jobs(*gangs, (_bursts(work, think), FIRST, {"min": 0.3}), seconds=5).run()
    assert jobs.speed(0, SECOND) >= 0.95 * 0.6
    assert jobs.speed(1, SECOND) >= 0.95 * 0.1
    assert min(jobs.speeds(2, start=SECOND)) >= 0.85 * 0.3
