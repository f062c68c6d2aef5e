"""The simulator against what theory says, and against the plans it runs."""

from __future__ import annotations

import random

import pytest

from gemlet.load import arrivals
from gemlet.serve.dispatch.expectation import Expectation
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.profiles import modelled
from gemlet.serve.profiles.profile import ModelProfile, Profiles, Vector
from gemlet.simulate.serving import peak
from gemlet.simulate.serving.simulator import MEASURED, Outcome, Spread, Tally, simulate
from tests.unit.serve.cases import DRAM_BOUND, demand, scaling, world
from tests.unit.serve.two_kinds import two

EXACT = PlanOptions(quantile=0.5, grid=10)
H200 = modelled.h200()


def run(
    profiles: Profiles, wanted: list[Demand], seconds: float, policy: str = "nway", *, times: float = 1.0,
    spread: arrivals.Spread = "poisson", options: PlanOptions = EXACT, drop: bool = True, seed: int = 1,
) -> Outcome:  # fmt: skip
    made = plan(profiles, wanted, Inventory(gpus=9), None, options, policy=policy)
    assert isinstance(made, Plan)
    streams = {
        d.model: arrivals.times(
            arrivals.constant(d.rate * times), arrivals.gaps(spread, 1.0, random.Random(seed)), seconds
        )
        for d in wanted
    }
    return simulate(made, profiles, streams, {d.model: d.slo_ms for d in wanted}, seconds, seed=seed, drop=drop)


def test_every_request_is_accounted_for() -> None:
    outcome = run(world(m=scaling(1.0)), [demand("m", 900, 5)], 20, times=1.5)
    tally = outcome.models["m"]
    assert tally.sent == len(tally.latencies) + tally.dropped
    assert tally.dropped > 0
    assert tally.sent == pytest.approx(1.5 * 900 * 20, rel=0.05)


def test_a_single_server_waits_as_queueing_theory_says() -> None:
    # One gpu-let, batches of one, service of exactly 1 ms, Poisson at a load of 0.7: M/D/1.
    one = ModelProfile(latency=((1.0, 1, 1.0),))
    outcome = run(world(m=one), [demand("m", 700, 1000)], 200, drop=False, options=PlanOptions(quantile=0.5, grid=1))
    latencies = outcome.models["m"].latencies
    waiting = 0.7 / (2 * (1 - 0.7))  # Pollaczek and Khinchine, in service times
    assert sum(latencies) / len(latencies) == pytest.approx(1 + waiting, rel=0.05)
    assert outcome.busy[0, 0] / 200 == pytest.approx(0.7, rel=0.02)


def test_the_way_to_the_executor_is_part_of_each_batch() -> None:
    profiles = world(m=scaling(1.0))
    made = plan(profiles, [demand("m", 100, 50)], Inventory(gpus=1), None, PlanOptions(quantile=0.5, grid=1))
    assert isinstance(made, Plan)
    arriving = [{"m": iter([0.0, 1.0, 2.0])} for _ in range(2)]
    without, with_hop = (
        simulate(made, profiles, streams, {"m": 50.0}, 3.0, hop_ms=hop)
        for streams, hop in zip(arriving, (0.0, 0.5), strict=True)
    )
    difference = [b - a for a, b in zip(without.models["m"].latencies, with_hop.models["m"].latencies, strict=True)]
    assert difference == pytest.approx([0.5, 0.5, 0.5])


def apart(count: int, spread: Spread, *, neighbour: bool) -> list[float]:
    """What batches of one take, sorted: of a model that is asked often enough to be alone in its queue."""
    profiles = world(a=scaling(1.0), b=scaling(500.0))
    made = plan(
        profiles, [demand("a", 10, 5000), demand("b", 0.1, 5000)], Inventory(gpus=1), None,
        PlanOptions(quantile=0.5, grid=2, pool_models=0), policy="nway",
    )  # fmt: skip
    assert isinstance(made, Plan)
    streams = {"a": iter([0.1 * n + 0.05 for n in range(count)])}
    if neighbour:
        streams["b"] = iter([0.1 * n for n in range(count)])
    outcome = simulate(made, profiles, streams, {"a": 5000.0, "b": 1e9}, 1e9, hop_ms=1.0, spread=spread)
    return sorted(outcome.models["a"].latencies)


def test_ways_and_batches_beside_neighbours_differ_as_they_were_measured() -> None:
    count = 4000
    steady = apart(9, Spread(batch=1.5), neighbour=False)
    assert steady[0] == pytest.approx(steady[-1])  # alone as the profile has it, which knows of no variation
    base = steady[0]
    ways = apart(count, Spread(way=2.2), neighbour=False)
    assert ways[count // 2] - (base - 1.0) == pytest.approx(1.0, rel=0.05)
    assert ways[int(0.95 * count)] - (base - 1.0) == pytest.approx(2.2, rel=0.05)
    batches = [ms - 1.0 for ms in apart(count, Spread(batch=1.5), neighbour=True)]
    assert batches[int(0.95 * count)] / batches[count // 2] == pytest.approx(1.5, rel=0.05)
    assert apart(50, MEASURED, neighbour=True) == apart(50, MEASURED, neighbour=True)


def test_a_clockwork_arrival_within_the_plan_is_never_late() -> None:
    wanted = [demand("resnet50", 9000, 10), demand("vgg16", 1500, 20), demand("dlrm", 9000, 5)]
    quiet = Profiles(
        origin="modelled",
        device=H200.device,
        models={name: _steady(model) for name, model in H200.models.items()},
    )
    for policy in ("exclusive", "timeshare", "gpulet", "nway", "nway+type"):
        outcome = run(quiet, wanted, 2.0, policy, spread="uniform", options=PlanOptions(quantile=0.5))
        assert outcome.attainment == 1.0, policy


def _steady(model: ModelProfile) -> ModelProfile:
    return ModelProfile(latency=model.latency, sensitivity=model.sensitivity, pressure=model.pressure)


def test_overload_keeps_goodput_by_dropping_early() -> None:
    profiles, wanted = world(m=scaling(1.0)), [demand("m", 900, 10)]
    dropping = run(profiles, wanted, 20, times=2.0)
    serving_all = run(profiles, wanted, 20, times=2.0, drop=False)
    assert dropping.goodput > 900  # of the 1000/s that a device can do
    assert serving_all.goodput < 100  # all late


def test_in_overload_jitter_makes_few_late_and_costs_no_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles, wanted = world(m=scaling(1.0, variation=0.1)), [demand("m", 900, 40)]
    steady = run(world(m=scaling(1.0)), wanted, 30, times=1.5)
    with_margin = run(profiles, wanted, 30, times=1.5)
    monkeypatch.setattr(Expectation, "margin", lambda self, place: 0.0)
    without = run(profiles, wanted, 30, times=1.5)

    def late(outcome: Outcome) -> float:
        tally = outcome.models["m"]
        return (len(tally.latencies) - tally.in_time) / tally.sent

    assert late(without) > 0.02
    assert late(with_margin) < 0.25 * late(without)
    assert with_margin.goodput > 1.02 * without.goodput
    assert with_margin.goodput > 0.97 * steady.goodput


def test_interference_slows_a_plan_that_did_not_allow_for_it() -> None:
    profiles = world(a=scaling(1.0, **DRAM_BOUND), b=scaling(1.0, **DRAM_BOUND))
    wanted = [demand("a", 390, 20), demand("b", 390, 20)]
    options = PlanOptions(quantile=0.9, grid=10)
    blind = run(profiles, wanted, 10, "gpulet-noint", options=options)
    seeing = run(profiles, wanted, 10, "gpulet", options=options)
    assert blind.attainment < 0.9
    assert seeing.attainment > 0.97


def test_the_same_seed_the_same_outcome() -> None:
    wanted = [demand("resnet50", 5000, 10), demand("bert", 1000, 20)]
    one, two, other = (run(H200, wanted, 1.0, options=PlanOptions(), seed=seed) for seed in (1, 1, 2))
    assert {m: t.latencies for m, t in one.models.items()} == {m: t.latencies for m, t in two.models.items()}
    assert {m: t.latencies for m, t in one.models.items()} != {m: t.latencies for m, t in other.models.items()}


def test_percentiles_are_nearest_ranks() -> None:
    tally = Tally(50.0, sent=100, latencies=[float(n) for n in range(100, 0, -1)])
    assert [tally.percentile(q) for q in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    assert tally.attainment == 0.5
    assert Tally(1.0).percentile(0.5) is None
    assert Tally(1.0).attainment == 1.0


def test_headroom_of_the_plan_holds_99_percent_under_poisson() -> None:
    wanted = [demand("resnet50", 3000, 10), demand("vgg16", 800, 20), demand("dlrm", 3000, 5)]
    assert run(H200, wanted, 5.0, "nway+type", options=PlanOptions()).worst_attainment >= 0.99


def test_memory_bound_neighbours_slow_down_only_while_they_run() -> None:
    slow = ModelProfile(latency=((0.5, 1, 1.0), (1.0, 1, 0.5)), sensitivity=Vector(dram=1.0), pressure=Vector(dram=1.0))
    profiles = world(a=slow, b=slow)
    wanted = [demand("a", 1, 1000), demand("b", 1, 1000)]
    outcome = run(profiles, wanted, 200, "static", drop=False, spread="poisson")
    latencies = [x for tally in outcome.models.values() for x in tally.latencies]
    assert min(latencies) == pytest.approx(1.0, rel=0.01)  # nobody beside it, though it was planned with someone


@pytest.mark.parametrize("edge", [0.003, 0.9, 1.0, 7.3, 40_000])
def test_the_search_finds_the_edge(edge: float) -> None:
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= edge

    found = peak.highest(holds, steps=8)
    assert found <= edge
    assert found == pytest.approx(edge, rel=2**-7)
    assert len(tried) < 40


def test_the_search_gives_up() -> None:
    assert peak.highest(lambda _: False) == 0.0
    assert peak.highest(lambda _: True, limit=100) >= 100


def test_the_search_from_above_finds_the_highest_of_several_edges() -> None:
    def holds(rate: float) -> bool:
        return rate <= 300 or 600 <= rate <= 800

    assert peak.highest_below(holds, 2000) == pytest.approx(800, rel=0.01)
    assert peak.highest_below(holds, 700) == 700
    assert peak.highest_below(lambda _: False, 700) == 0.0


def test_a_batch_takes_as_long_as_on_the_kind_of_device_that_it_runs_on() -> None:
    known, there = two({"a": scaling(1.0), "b": scaling(1.0)}, {"a": scaling(3.0)})
    wanted = [demand("a", 250, 100), demand("b", 900, 100)]
    made = plan(known, wanted, there, None, EXACT)
    assert isinstance(made, Plan)
    assert [(gpu.device, gpu.gpu_lets[0].tasks[0].model) for gpu in made.gpus] == [("one", "b"), ("other", "a")]
    share = made.gpus[1].gpu_lets[0].sm
    coming = {d.model: arrivals.times(arrivals.constant(1.0), arrivals.gaps("uniform", 0.0, random.Random(1)), 20)
              for d in wanted}  # fmt: skip
    outcome = simulate(made, known, coming, {"a": 100, "b": 100}, 20)
    assert outcome.models["a"].percentile(0.5) == pytest.approx(3.0 / share)
