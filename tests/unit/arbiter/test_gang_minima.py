"""What gangs leave to others that share one of their devices: minima, whatever share the gang has on its other ones."""

from __future__ import annotations

import pytest

from gemlet.simulate.workload import SECOND
from tests.unit.arbiter.gang_host import FSDP, SATURATING, Jobs

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
