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
from gemlet.simulate.serving.simulator import Coming, Outcome, Warming, simulate
from tests.unit.serve.cases import DRAM_BOUND, demand, scaling, world

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
    follows, control = run(follows=True, costs=replanning.Costs(plan_s=0.15, warm=0.0))
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
    quick, _ = run(follows=True, costs=replanning.Costs(plan_s=0.0, warm=0.0))
    slow, _ = run(follows=True, costs=replanning.Costs(plan_s=2.0, warm=0.0))
    (first,) = replanning.shortages(rates, quick.plans, SECONDS)
    assert first.begin == pytest.approx(20.0)
    assert first.end - first.begin < 1.0
    assert first.models == ("a",)
    late = replanning.shortages(rates, slow.plans, SECONDS)
    assert late[0].end - late[0].begin == pytest.approx(2 + first.end - first.begin, abs=0.5)


def test_a_gpu_let_is_warmed_once_and_the_plan_waits_for_it() -> None:
    demands = [demand("a", 100, 20.0)]
    start = plan(PROFILES, demands, Inventory(gpus=3), None, OPTIONS)
    assert isinstance(start, Plan)
    control = replanning.SimulatedController(
        PROFILES, demands, ControlSettings(planner=OPTIONS, most=3, down_after_s=5.0), start, devices=3
    )
    twice = arrivals.Steps((0.0, 10.0, 20.0, 50.0), (100.0, 600.0, 100.0, 600.0))
    stream = arrivals.times(twice, arrivals.gaps("uniform", 1.0, random.Random(1)), 60.0)
    simulate(start, PROFILES, {"a": stream}, {"a": 20.0}, 60.0, control=control)
    up = [change for change in control.history if change.cause.reason == "overload" and change.moved]
    assert len(up) == 2
    assert any(change.moved for change in control.history if up[0].at < change.at < up[1].at)
    assert up[0].took_s > 0.5  # these models take long on a part of a device
    assert up[1].took_s < 0.3  # planning and loading; the sizes are still warm


def test_what_is_warmed_is_a_neighbour_of_what_runs() -> None:
    known = world(a=scaling(2.0, **DRAM_BOUND), b=scaling(2.0, **DRAM_BOUND))
    made = plan(known, [demand("a", 50, 100)], Inventory(gpus=1), None, OPTIONS)
    assert isinstance(made, Plan)

    class Warms:
        """A control that makes something ready in the second half."""

        tick_s = 5.0

        def look(self, second: float, counts: object, waiting: object) -> Coming | None:
            return Coming(5.0, made, (Warming(0.0, 5.0, 0, 0.5, "b"),)) if second == 5.0 else None

        def adopted(self, second: float, plan: Plan) -> None:
            pass

    def latencies(control: Warms | None) -> list[float]:
        even = (0.1 * n for n in range(1, 99))
        return simulate(made, known, {"a": even}, {"a": 100.0}, 10.0, control=control).models["a"].latencies

    alone, beside = latencies(None), latencies(Warms())
    assert beside[:49] == alone[:49]
    assert all(slow > 1.1 * usual for slow, usual in zip(beside[50:], alone[50:], strict=True))


def test_every_question_to_the_planner_takes_its_time() -> None:
    wanted = [demand("a", 100, 20.0)]
    start = plan(PROFILES, wanted, Inventory(gpus=1), None, OPTIONS)
    assert isinstance(start, Plan)
    costs = replanning.Costs(warm=0.0)

    def asked(rate: float) -> Coming:
        control = replanning.SimulatedController(
            PROFILES, wanted, ControlSettings(planner=OPTIONS, most=1), start, devices=1, costs=costs
        )
        tick = control.tick_s
        assert control.look(0.0, {}, {}) is None
        for n in range(1, 200):
            found = control.look(n * tick, {"a": round(rate * tick)}, {"a": 0})
            if found is not None:
                return found
        raise AssertionError("no new plan")

    assert asked(300.0).delay == pytest.approx(costs.plan_s)
    assert asked(5000.0).delay >= 5 * costs.plan_s  # no plan for all of it: the largest part is searched for


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
    assert "assumed: 50 ms for each question to the planner" in message


def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demands.toml"
    file.write_text(DEMANDS)
    assert main.run(["simulate", "--serve", str(file), "--replan", "--peak"]) == 2
    assert main.run(["simulate", "--replan", str(file)]) == 2
    file.write_text(DEMANDS.replace("[300, 2500]", "[90000, 1]"))
    assert main.run(["simulate", "--serve", str(file), "--replan"]) == 1
    assert "no plan for the first second" in capsys.readouterr().err
