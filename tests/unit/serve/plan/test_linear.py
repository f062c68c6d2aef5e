"""glet's fitted line of interference in plans, in the place of gemlet's model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gemlet.errors import InvalidValue
from gemlet.serve.plan.demand_file import parse
from gemlet.serve.plan.model import Demand, Inventory, Linear, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.search.linear import slowdown
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import profile_files
from gemlet.serve.profiles.profile import Vector

NOTHING = Linear(l2_own=0.0, l2=0.0, dram_own=0.0, dram=0.0, constant=1.0)
SOME = Linear(l2_own=0.1, l2=0.7, dram_own=0.0, dram=0.2, constant=0.9)
MODELS = ("googlenet", "resnet50", "vgg16", "bert")


@pytest.fixture(scope="module")
def known():
    return profile_files.load_profiles(Path("h200"))


def of_pressures(known, **pressures):
    models = {name: msgspec.structs.replace(known.models[name], pressure=vector) for name, vector in pressures.items()}
    return msgspec.structs.replace(known, models=known.models | models)


def planned(known, line, rate=150.0, policy="gpulet"):
    demands = [Demand(model=name, rate=rate, slo_ms=60.0) for name in MODELS]
    return plan(known, demands, Inventory(gpus=8), None, PlanOptions(linear=line), policy=policy)


def gpu_lets(made):
    return [[(gpu_let.sm, gpu_let.duty_ms, gpu_let.tasks) for gpu_let in gpu.gpu_lets] for gpu in made.gpus]


def test_the_line_is_of_both_models_at_their_shares_and_the_worst_neighbour_counts(known):
    known = of_pressures(known, bert=Vector(dram=0.5, l2=0.8), vgg16=Vector(dram=1.0, l2=0.4))
    one = slowdown(SOME, known, "bert", [(0.5, ["vgg16"])])
    assert one == pytest.approx(0.9 + 0.1 * 0.8 * 0.5 + 0.7 * 0.4 * 0.5 + 0.2 * 1.0 * 0.5)
    two = slowdown(SOME, known, "bert", [(0.25, ["bert"]), (0.5, ["vgg16"])])
    assert two == pytest.approx(0.9 + 0.1 * 0.8 * 0.25 + 0.7 * 0.4 * 0.5 + 0.2 * 1.0 * 0.5)
    assert slowdown(SOME, known, "bert", [(0.01, ["bert"])]) == 1.0, "nobody is made faster"
    assert slowdown(SOME, known, "bert", []) == 1.0


def test_plans_count_on_the_line_alone(known):
    blind = plan(
        known, [Demand(model=name, rate=150.0, slo_ms=60.0) for name in MODELS], Inventory(gpus=8), None,
        PlanOptions(), policy="gpulet-noint",
    )  # fmt: skip
    free, slow = planned(known, NOTHING), planned(known, SOME)
    assert isinstance(blind, Plan)
    assert gpu_lets(free) == gpu_lets(blind)
    tasks = [(gpu, task) for gpu in slow.gpus for gpu_let in gpu.gpu_lets for task in gpu_let.tasks]
    assert any(task.slowdown > 1 for gpu, task in tasks if len(gpu.gpu_lets) > 1), "nobody has a neighbour"
    for gpu in slow.gpus:
        for gpu_let in gpu.gpu_lets:
            beside = [(o.sm, [task.model for task in o.tasks]) for o in gpu.gpu_lets if o is not gpu_let]
            for task in gpu_let.tasks:
                assert task.slowdown == pytest.approx(slowdown(SOME, known, task.model, beside), abs=1e-3)
    assert verify(slow, known, Inventory(gpus=8), PlanOptions(linear=SOME, grid=10)) == []


@pytest.mark.parametrize("policy", ["nway", "nway+type"])
def test_policies_that_rest_on_another_model_refuse_it(known, policy):
    with pytest.raises(InvalidValue, match="rests on gemlet's model"):
        planned(known, SOME, policy=policy)


def test_a_demand_file_can_have_it():
    text = """
[[model]]
name = "bert"
rate = 10
slo = "50ms"

[options.linear]
l2_own = 0.1
l2 = 0.7
dram_own = 0.0
dram = 0.2
constant = 0.9
"""
    assert parse(text, "demand.toml", None).options.linear == SOME
