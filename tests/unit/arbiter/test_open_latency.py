"""The class latency beside others that share the device freely, on the virtual device."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from gemlet.simulate.workload import SECOND, ProgramSpec
from tests.unit.arbiter.open_device import LAUNCH_BOUND, MS, SATURATING, US, Shared, percentile, served

LATENCY = {"priority": "latency"}
REST = {"priority": "best-effort"}
# 250 kernels that the host takes 10 ms to launch.
EAGER_REQUESTS = ProgramSpec(kind="poisson", work=3 * MS, kernel=12 * US, launch=40 * US)
TRAINING = replace(LAUNCH_BOUND, kernels=200, kernel=20 * US, gap=30 * US)


@pytest.mark.parametrize("busy", [0.2, 0.6])
def test_an_eager_service_leaves_a_training_what_slicing_leaves_it(busy):
    """Where slicing keeps the service's bound: it takes 1.22 of the time that a request takes alone, at .6."""
    service = LATENCY | {"slowdown": 1.3}, replace(EAGER_REQUESTS, rate=busy * 100)
    shared = Shared(service, (REST, TRAINING), seconds=5)
    sliced = shared.sliced().speed(1, shared.alone(1), start=SECOND)
    assert shared.speed(1) >= 0.95 * sliced


@pytest.mark.parametrize("rate", [20, 40, 60])
def test_an_eager_service_that_slicing_slows_down_is_protected(rate):
    """The promise is of the time that a request takes once its turn has come."""
    denser = replace(TRAINING, gap=15 * US)
    shared = Shared((LATENCY, replace(EAGER_REQUESTS, rate=rate)), (REST, denser), seconds=6)
    alone = fmean(served(shared.alone(0)))
    assert fmean(served(shared.sliced())) > 1.1 * alone
    assert fmean(served(shared.outcome)) <= 1.1 * alone
    assert shared.speed(1) >= 0.95 - rate / 120  # a request takes 10 ms: .2, .4 and .6 of the time


@pytest.mark.parametrize("rate", [20, 40, 60])
def test_one_that_slicing_serves_in_time_leaves_its_neighbour_nearly_all(rate):
    shared = Shared((LATENCY, replace(EAGER_REQUESTS, rate=rate)), (REST, TRAINING), seconds=6)
    assert fmean(served(shared.outcome)) <= 1.11 * fmean(served(shared.alone(0)))
    assert shared.speed(1) >= 0.75


def test_an_eager_service_is_not_slower_than_promised():
    shared = Shared((LATENCY, replace(EAGER_REQUESTS, rate=20)), (REST, TRAINING), seconds=5)
    alone, slices = shared.latencies_alone(0), shared.sliced().clients[0].program
    sliced = [t for at, t in zip(slices.requested, slices.latencies, strict=True) if at >= SECOND]
    for part in (0.5, 0.99):
        most = max(1.1 * percentile(alone, part), 1.05 * percentile(sliced, part))
        assert percentile(shared.latencies(0), part) <= most


@pytest.mark.parametrize("kernel", [100 * US, 500 * US])
def test_a_service_that_fills_the_device_in_steps_leaves_the_rest(kernel):
    answers = ProgramSpec(
        kind="answers", rate=3.6, prefill=29 * MS, steps=47, kernels=1, kernel=2700 * US, host=150 * US
    )
    shared = Shared((LATENCY | {"min": 0.3}, answers), (REST, replace(SATURATING, kernel=kernel)), seconds=6)
    alone = sum(served(shared.alone(0), start=0))
    assert sum(served(shared.outcome, start=0)) <= 1.1 * alone
    program = shared.outcome.clients[0].program
    end = program.requested[-1] + program.latencies[-1]
    assert shared.speed(1, start=0, end=end) >= 0.9 * (1 - alone / end)


def test_short_requests_are_protected_from_the_first():
    requests = ProgramSpec(kind="poisson", rate=100, work=200 * US, kernel=100 * US)
    shared = Shared((LATENCY, requests), SATURATING, seconds=3)
    assert sum(took > MS for took in shared.latencies(0, start=0)) <= 4  # those on trial: at 1 s and 2 s
    assert shared.speed(1) >= 0.93


def test_short_requests_stay_protected():
    requests = ProgramSpec(kind="poisson", rate=100, work=200 * US, kernel=100 * US)
    shared = Shared((LATENCY, requests), SATURATING, seconds=5)
    assert percentile(shared.latencies(0), 0.5) <= 600 * US  # the switch, and the kernel that runs
    assert percentile(shared.latencies(0), 0.99) <= 1100 * US
    assert shared.speed(1) >= 0.93
    assert shared.engagements(0) <= 3


def test_a_latency_client_that_saturates_gets_its_share_and_no_more():
    shared = Shared((LATENCY, SATURATING), ({"min": 0.5}, SATURATING), seconds=4)
    for number in range(2):
        assert shared.speeds(number) == pytest.approx([0.5] * 3, abs=0.02)
    assert shared.outcome.handovers <= 4 * 40  # turns of 26 ms: it does not cut the other's again and again


def test_the_neighbours_minimum_holds_beside_a_saturating_service_with_one():
    shared = Shared((LATENCY | {"min": 0.3}, SATURATING), ({"min": 0.5}, SATURATING), seconds=4)
    assert min(shared.speeds(0)) >= 0.3 - 0.02
    assert min(shared.speeds(1)) >= 0.5 - 0.02


def test_a_maximum_holds_for_a_latency_client_that_saturates():
    shared = Shared((LATENCY | {"max": 0.3}, SATURATING), SATURATING, seconds=4)
    assert max(shared.speeds(0)) <= 0.3 + 0.02
    assert min(shared.speeds(0)) >= 0.3 - 0.02
    assert min(shared.speeds(1)) >= 0.67


def test_bursts_do_not_take_a_neighbours_minimum():
    """Bursts of 10 ms with pauses of 5 left 29 of 50 % where a turn could be cut short for each."""
    bursts = ProgramSpec(kind="bursty", work=10 * MS, think=5 * MS, kernel=100 * US)
    shared = Shared((LATENCY | {"min": 0.3}, bursts), ({"min": 0.5}, SATURATING), seconds=4)
    assert min(shared.speeds(1)) >= 0.5 - 0.02


def test_a_maximum_holds_for_bursts():
    bursts = ProgramSpec(kind="bursty", work=10 * MS, think=5 * MS, kernel=100 * US)
    shared = Shared((LATENCY | {"max": 0.3}, bursts), ({"min": 0.5}, SATURATING), seconds=4)
    for start in range(1, 4):
        used = shared.outcome.work(0, start * SECOND, (start + 1) * SECOND) / SECOND
        assert used <= 0.3 + 0.02
