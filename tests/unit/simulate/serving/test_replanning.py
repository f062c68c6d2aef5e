"""The controller in the simulator's loop: what it gains over a plan that stays, and how fast it is."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import TYPE_CHECKING

import pytest

from gemlet.cli import main
from gemlet.load import arrivals
from gemlet.serve.control.settings import ControlSettings
from gemlet.serve.plan.model import Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.simulate.serving import replanning
from gemlet.simulate.serving.simulator import Outcome, simulate
from tests.unit.serve.cases import demand, scaling, world

if TYPE_CHECKING:
    from pathlib import Path

PROFILES = world(a=scaling(2.0, weights_mib=100.0), b=scaling(2.0, weights_mib=100.0))
SLOS = {"a": 20.0, "b": 20.0}
OPTIONS = PlanOptions(quantile=0.99, grid=10, pool_models=0)  # a pool sustains much of the step as it is
STEP = {"a": arrivals.Steps((0.0, 20.0, 40.0), (100.0, 600.0, 100.0)), "b": arrivals.constant(100.0)}
SECONDS = 60.0


@cache
def run(*, follows: bool, costs: replanning.Costs | None = None) -> tuple[Outcome, replanning.SimulatedController]:
    demands = [demand(model, rate.at(0.0), SLOS[model]) for model, rate in STEP.items()]
    start = plan(PROFILES, demands, Inventory(gpus=3), None, OPTIONS)
    assert isinstance(start, Plan)
    control = replanning.SimulatedController(
        PROFILES, demands, ControlSettings(planner=OPTIONS, most=3), start, devices=3, costs=costs
    )
    streams = {
        model: arrivals.times(rate, arrivals.gaps("poisson", 1.0, random.Random(model)), SECONDS)
        for model, rate in STEP.items()
    }
    outcome = simulate(start, PROFILES, streams, SLOS, SECONDS, control=control if follows else None)
    return outcome, control


def test_a_plan_that_follows_meets_a_step_that_breaks_one_that_stays() -> None:
    stays, _ = run(follows=False)
    follows, control = run(follows=True)
    assert stays.models["a"].attainment < 0.7
    assert follows.models["a"].attainment > 0.97
    assert follows.models["b"].attainment > stays.models["b"].attainment - 0.01  # whose rate is the same all the time
    assert all(tally.sent == len(tally.latencies) + tally.dropped for tally in follows.models.values())
    missed = follows.models["a"].missed
    assert len(missed) == follows.models["a"].sent - follows.models["a"].in_time
    assert sum(20 <= second < 21.5 for second in missed) > 0.5 * len(missed)  # while it had not noticed yet
    assert control.history[0].cause.reason == "overload"


@pytest.mark.parametrize("rate", [6.0, 400.0])
def test_chance_is_not_an_emergency(rate: float) -> None:
    seconds = 400 if rate < 100 else 60
    demands = [demand("a", rate, 20.0)]
    start = plan(PROFILES, demands, Inventory(gpus=3), None, OPTIONS)
    assert isinstance(start, Plan)
    control = replanning.SimulatedController(
        PROFILES, demands, ControlSettings(planner=OPTIONS, most=3), start, devices=3
    )
    stream = arrivals.times(arrivals.constant(rate), arrivals.gaps("poisson", 1.0, random.Random("chance")), seconds)
    simulate(start, PROFILES, {"a": stream}, {"a": 20.0}, seconds, control=control)
    assert [change for change in control.history if change.cause.emergency] == []


def test_the_reaction_is_as_long_as_detecting_planning_and_loading() -> None:
    rates = {model: rate.at for model, rate in STEP.items()}
    quick, _ = run(follows=True, costs=replanning.Costs(plan_s=0.0, split_s=0.0))
    slow, _ = run(follows=True, costs=replanning.Costs(plan_s=2.0))
    (first,) = replanning.shortages(rates, quick.plans, SECONDS)
    assert first.begin == pytest.approx(20.0)
    assert first.end - first.begin < 1.0
    assert first.models == ("a",)
    late = replanning.shortages(rates, slow.plans, SECONDS)
    assert late[0].end - late[0].begin == pytest.approx(2 + first.end - first.begin, abs=0.5)


def test_devices_are_given_back_when_the_rate_is_low_again() -> None:
    outcome, _ = run(follows=True)
    assert [len(made.gpus) for _, made in (outcome.plans[0], outcome.plans[1])] == [1, 2]
    assert replanning.gpu_seconds(outcome.plans, SECONDS) < 2 * SECONDS
    assert replanning.gpu_seconds(outcome.plans[:1], SECONDS) == SECONDS


def test_shortages_of_a_plan_that_stays_are_the_times_above_it() -> None:
    outcome, _ = run(follows=False)
    (only,) = replanning.shortages({model: rate.at for model, rate in STEP.items()}, outcome.plans, SECONDS)
    assert (only.begin, only.end) == (pytest.approx(20.0), pytest.approx(40.0))


DEMANDS = """
gpus = 2
duration = "12s"
[options]
grid = 10
[[model]]
name = "vgg16"
slo = "20ms"
rate = { at = ["0s", "5s"], rates = [300, 2500] }
"""


def test_the_verb_says_what_changed_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demands.toml"
    file.write_text(DEMANDS)
    assert main.run(["simulate", "--serve", str(file), "--replan", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["simulated"]
    (change,) = [change for change in document["changes"] if change["emergency"]]
    assert 5.0 <= change["at"] <= 5.6
    assert document["shortages"][0]["models"] == ["vgg16"]
    assert document["models"]["vgg16"]["attainment"] > 0.9
    assert main.run(["simulate", "--serve", str(file), "--replan"]) == 0
    message = capsys.readouterr().out
    assert "simulated, virtual time: 12 s" in message
    assert "planned anew (vgg16: " in message
    assert "assumed: 100 ms to plan" in message


def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demands.toml"
    file.write_text(DEMANDS)
    assert main.run(["simulate", "--serve", str(file), "--replan", "--peak"]) == 2
    assert main.run(["simulate", "--replan", str(file)]) == 2
    file.write_text(DEMANDS.replace("[300, 2500]", "[90000, 1]"))
    assert main.run(["simulate", "--serve", str(file), "--replan"]) == 1
    assert "no plan for the first second" in capsys.readouterr().err
