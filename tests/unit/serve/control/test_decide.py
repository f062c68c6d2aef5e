"""When the controller sees a reason to plan, count by count."""

from __future__ import annotations

import random

import pytest

from gemlet.serve.control.decide import Decider
from gemlet.serve.plan.model import Demand, Gpu, Plan, PlannedGpuLet, Task

TICK_S = 0.1


def started(rate: float, capacity: float) -> Decider:
    """A controller with a plan for this rate that can serve a little more."""
    demand = Demand(model="m", rate=rate, slo_ms=100)
    task = Task(
        model="m", rate=rate, capacity=capacity, batch=4, latency_ms=10, worst_ms=20, slo_ms=100, slowdown=1.0
    )  # fmt: skip
    gpu_let = PlannedGpuLet(sm=1.0, duty_ms=20, occupancy=1, tasks=(task,))
    gpu = Gpu(index=0, memory_mib=0, gpu_lets=(gpu_let,))
    decider = Decider([demand])
    decider.observe(0.0, {}, (0,))
    decider.started_with(Plan(policy="test", device="d", origin="modelled", gpus=(gpu,), demands=(demand,)), 0.0)
    return decider


def poisson(mean: float, chance: random.Random) -> int:
    count, time = 0, chance.expovariate(1.0)
    while time < mean:
        count += 1
        time += chance.expovariate(1.0)
    return count


@pytest.mark.parametrize("rate", [1.0, 6.0, 30.0])
def test_an_hour_of_few_requests_is_not_an_emergency(rate: float) -> None:
    decider, chance = started(rate, rate + 2.33 * rate**0.5), random.Random(1)
    for look in range(1, 36_000):
        cause = decider.observe(look * TICK_S, {"m": poisson(rate * TICK_S, chance)}, (0,))
        assert cause is None or not cause.emergency, cause


@pytest.mark.parametrize("rate", [30.0, 300.0, 3000.0])
def test_twice_the_rate_is_an_emergency_within_two_seconds(rate: float) -> None:
    decider, chance = started(rate, 1.1 * rate), random.Random(1)
    for look in range(1, 100):
        assert decider.observe(look * TICK_S, {"m": poisson(rate * TICK_S, chance)}, (0,)) is None
    for look in range(100, 120):
        cause = decider.observe(look * TICK_S, {"m": poisson(2 * rate * TICK_S, chance)}, (0,))
        if cause is not None and cause.emergency:
            assert look < 104 or rate < 1000  # the more requests, the sooner it is certain
            return
    pytest.fail("no emergency")
