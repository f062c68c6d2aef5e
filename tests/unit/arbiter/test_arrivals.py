"""A latency client that keeps a period finds the device free."""

from __future__ import annotations

import pytest

from gemlet.config.quantities import MICROSECOND, MILLISECOND, SECOND
from gemlet.model import GroupSpec, Priority
from gemlet.simulate.engine import Engine
from gemlet.simulate.workload import ProgramSpec, Workload


def run(kind, kernel, *, rate=100.0, **parameters):
    requests = ProgramSpec(kind=kind, rate=rate, work=200 * MICROSECOND, kernel=200 * MICROSECOND)
    groups = (
        (GroupSpec(name="frames", priority=Priority.LATENCY), (requests,)),
        (GroupSpec(name="training"), (ProgramSpec(kernel=kernel),)),
    )
    outcome = Engine(Workload(groups=groups, duration=5 * SECOND, parameters={"open": False} | parameters)).run()
    latencies = sorted(outcome.clients[0].program.latencies[20:])
    worked = sum(r.end - r.start for r in outcome.runs if r.client == 1)
    return latencies[len(latencies) * 99 // 100], worked / outcome.duration


@pytest.mark.parametrize("kernel", [100 * MICROSECOND, MILLISECOND, 4 * MILLISECOND])
def test_it_does_not_wait_for_a_kernel(kernel):
    p99, others = run("periodic", kernel)
    assert p99 < 400 * MICROSECOND  # 200 of its own, and the switch
    assert others > 0.94 - kernel / (10 * MILLISECOND)  # a turn ends with a whole kernel


def test_others_lose_little():
    _, with_it = run("periodic", 100 * MICROSECOND)
    _, without = run("poisson", 100 * MICROSECOND)
    assert with_it > without - 0.025


def test_a_client_that_comes_at_random_is_not_waited_for():
    p99, others = run("poisson", MILLISECOND)
    assert p99 > 400 * MICROSECOND
    assert others > 0.9


def test_one_that_stays_away_is_forgotten():
    requests = ProgramSpec(kind="periodic", rate=100, work=200 * MICROSECOND, kernel=200 * MICROSECOND, leave=SECOND)
    groups = (
        (GroupSpec(name="frames", priority=Priority.LATENCY), (requests,)),
        (GroupSpec(name="training"), (ProgramSpec(),)),
    )
    outcome = Engine(Workload(groups=groups, duration=3 * SECOND, parameters={"open": False})).run()
    worked = sum(max(0, r.end - max(r.start, 2 * SECOND)) for r in outcome.runs if r.client == 1)
    assert worked == pytest.approx(SECOND, rel=0.001)
