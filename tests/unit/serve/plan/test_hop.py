"""A batch's way to the executor's process and back, in plans."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gemlet.errors import InvalidValue
from gemlet.load import arrivals
from gemlet.serve.plan.demand_file import parse
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import profile_files
from gemlet.simulate.serving.simulator import simulate

HOP_MS = 0.4
SECONDS = 4.0


@pytest.fixture(scope="module")
def known():
    return profile_files.load_profiles(Path("h200"))


def demands(rate):
    return [Demand(model=name, rate=rate, slo_ms=5.0) for name in ("lenet1", "googlenet", "resnet50")]


def largest(known, options):
    """For the highest rate that timeshare has a plan for."""
    made = None
    for rate in range(100, 4000, 100):
        one = plan(known, demands(rate), Inventory(gpus=1), None, options, policy="timeshare")
        if not isinstance(one, Plan):
            break
        made = one
    return made


def attained(known, made):
    slos = {each.model: each.slo_ms for each in made.demands}
    coming = {
        each.model: arrivals.times(
            arrivals.constant(each.rate), arrivals.gaps("poisson", 1.0, random.Random(each.model)), SECONDS
        )
        for each in made.demands
    }
    return simulate(made, known, coming, slos, SECONDS, hop_ms=HOP_MS).attainment


def test_a_plan_that_knows_the_hop_keeps_more_of_what_it_promises(known):
    options = PlanOptions(hop_ms=HOP_MS)
    informed, blind = largest(known, options), largest(known, PlanOptions())
    assert verify(informed, known, Inventory(gpus=1), options) == []
    assert verify(blind, known, Inventory(gpus=1), options) != []
    assert attained(known, informed) > attained(known, blind) + 0.15


def test_a_file_of_demands_tells_the_planner_and_the_simulator_the_same():
    text = '[[model]]\nname = "lenet1"\nslo = "5ms"\nrate = 100\n'
    for hop, ms in (("", HOP_MS), ('hop = "1ms"\n', 1.0), ('hop = "0s"\n', 0.0)):
        service = parse(hop + text, "x.toml", lambda _: "")
        assert (service.hop_ms, service.options.hop_ms) == (ms, ms)


@pytest.mark.parametrize("hop", [-1.0, float("nan"), float("inf")])
def test_a_hop_that_makes_no_sense_is_refused(known, hop):
    with pytest.raises(InvalidValue, match="hop_ms"):
        plan(known, demands(10), Inventory(gpus=1), None, PlanOptions(hop_ms=hop))
