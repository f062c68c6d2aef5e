"""What gangs leave to others that share one of their devices: minima, whatever share the gang has on its other ones."""

from __future__ import annotations

import pytest

from gemlet.simulate.workload import SECOND
from tests.unit.arbiter.gang_host import DDP, FSDP, SATURATING, TENSOR, Jobs

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
