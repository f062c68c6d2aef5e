"""What every policy must keep, whatever is demanded."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import InvalidValue
from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import grid_of, plan
from gemlet.serve.plan.policies import POLICIES
from gemlet.serve.plan.search.interference import contention, slowdown_beside
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import modelled
from gemlet.serve.profiles.profile import Vector
from tests.examples import few
from tests.unit.serve.cases import COMPUTE_BOUND, DRAM_BOUND, demand, scaling, world

H200 = modelled.h200()
MODELS = ("resnet50", "vgg16", "mobilenet_v2", "bert", "dlrm")
SMALL = {"ideal", "exhaustive"}
EXACT = PlanOptions(quantile=0.5, grid=10)
APART = PlanOptions(pool_models=0)

demands = st.lists(
    st.builds(
        Demand,
        model=st.sampled_from(MODELS),
        rate=st.floats(0, 20_000),
        slo_ms=st.floats(1, 100),
        variation=st.floats(0, 3),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda wanted: wanted.model,
)
some_options = st.builds(
    PlanOptions,
    grid=st.sampled_from([0, 5, 10]),
    quantile=st.sampled_from([0.5, 0.9, 0.99]),
    executor=st.sampled_from(["green", "mps"]),
    effort=st.just(300),
)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in SMALL])
@few(8)
@given(wanted=demands, options=some_options, gpus=st.integers(1, 6))
def test_a_plan_keeps_every_promise(policy: str, wanted: list[Demand], options: PlanOptions, gpus: int) -> None:
    made = plan(H200, wanted, Inventory(gpus=gpus), None, options, policy=policy)
    if isinstance(made, Infeasible):
        assert made.why
        assert all(made.why)
        return
    keep_promises(made, gpus, POLICIES[policy].adapt(options))


@pytest.mark.parametrize("policy", sorted(SMALL))
@few(6)
@given(wanted=demands)
def test_the_exhaustive_ones_too(policy: str, wanted: list[Demand]) -> None:
    options = PlanOptions(grid=5, quantile=0.5)
    made = plan(H200, wanted, Inventory(gpus=2), None, options, policy=policy)
    if isinstance(made, Plan):
        keep_promises(made, 2, POLICIES[policy].adapt(options))


def keep_promises(made: Plan, gpus: int, options: PlanOptions) -> None:
    """Counted here anew, with nothing of the planner's but the formula of the slow-down."""
    assert len(made.gpus) <= gpus
    assert all(gpu.index < gpus for gpu in made.gpus)
    for gpu in made.gpus:
        assert sum(gpu_let.sm for gpu_let in gpu.gpu_lets) <= 1.0 + 1e-4
        loaded = [task.model for gpu_let in gpu.gpu_lets for task in gpu_let.tasks]
        copies = loaded if options.executor == "mps" else sorted(set(loaded))
        memory = sum(H200.models[model].weights_mib for model in copies)
        memory += sum(H200.models[t.model].activation_mib * t.batch for gpu_let in gpu.gpu_lets for t in gpu_let.tasks)
        assert memory <= 0.9 * H200.device.memory_mib
        for gpu_let in gpu.gpu_lets:
            assert gpu_let.why
            for task in gpu_let.tasks:
                assert task.worst_ms <= task.slo_ms + 1e-6
                assert task.rate <= task.capacity * (1 + 1e-6)
                assert task.latency_ms >= H200.models[task.model].surface.latency(gpu_let.sm, task.batch) * (1 - 1e-6)
    for wanted in made.demands:
        placed = sum(task.rate for task in made.tasks() if task.model == wanted.model)
        assert placed >= wanted.rate * (1 - 1e-6)
        z = max(0.0, NormalDist().inv_cdf(options.quantile))
        assert placed <= max(0.001, wanted.rate + z * wanted.variation * wanted.rate**0.5) * (1 + 1e-6)
    assert verify(made, H200, Inventory(gpus=gpus), options) == []


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_same_input_gives_the_same_plan(policy: str) -> None:
    wanted = [demand("resnet50", 9000, 10), demand("vgg16", 2000, 20), demand("dlrm", 5000, 5)]
    plans = [
        msgspec.json.encode(plan(H200, wanted, Inventory(gpus=3), None, PlanOptions(grid=5), policy=policy))
        for _ in range(2)
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("policy", ["exclusive", "timeshare", "gpulet", "nway", "nway+type"])
@few(6)
@given(wanted=demands)
def test_more_gpus_never_make_a_plan_impossible_or_larger(policy: str, wanted: list[Demand]) -> None:
    options = PlanOptions(grid=10, effort=200)
    before: int | None = None
    for gpus in range(1, 7):
        made = plan(H200, wanted, Inventory(gpus=gpus), None, options, policy=policy)
        if isinstance(made, Plan):
            assert before is None or len(made.gpus) <= before
            before = len(made.gpus)
        else:
            assert before is None


@few(6)
@given(wanted=demands)
def test_an_unchanged_demand_keeps_the_plan(wanted: list[Demand]) -> None:
    first = plan(H200, wanted, Inventory(gpus=6), None, PlanOptions(effort=200))
    if isinstance(first, Infeasible) or not first.gpus:
        return
    second = plan(H200, wanted, Inventory(gpus=6), first, PlanOptions(effort=200))
    assert isinstance(second, Plan)
    assert second.kept
    assert [(g.index, [(x.sm, [t.model for t in x.tasks]) for x in g.gpu_lets]) for g in second.gpus] == [
        (g.index, [(x.sm, [t.model for t in x.tasks]) for x in g.gpu_lets]) for g in first.gpus
    ]


def test_a_little_less_keeps_the_plan_and_much_more_does_not() -> None:
    def at(rate: float) -> list[Demand]:
        return [demand("resnet50", rate, 10), demand("vgg16", 1000, 20)]

    options = PlanOptions(pool_models=0)  # pools sustain more; see test_pools.py
    first = plan(H200, at(5000), Inventory(gpus=4), None, options)
    assert isinstance(first, Plan)
    for rate, kept in ((4800, True), (4000, False), (20_000, False)):
        made = plan(H200, at(rate), Inventory(gpus=4), first, options)
        assert isinstance(made, Plan)
        assert made.kept is kept
        assert sum(task.rate for task in made.tasks() if task.model == "resnet50") >= rate


def test_a_new_plan_leaves_models_on_the_gpus_they_were_on() -> None:
    profiles = world(a=scaling(1.0), b=scaling(1.0), c=scaling(1.0))
    first = plan(profiles, [demand("a", 900, 10), demand("b", 950, 10)], Inventory(gpus=3), None, EXACT)
    assert isinstance(first, Plan)
    where = {task.model: gpu.index for gpu in first.gpus for gpu_let in gpu.gpu_lets for task in gpu_let.tasks}
    wanted = [demand("b", 950, 10), demand("c", 990, 10), demand("a", 880, 10)]
    second = plan(profiles, wanted, Inventory(gpus=3), first, EXACT)
    assert isinstance(second, Plan)
    now = {task.model: gpu.index for gpu in second.gpus for gpu_let in gpu.gpu_lets for task in gpu_let.tasks}
    assert {model: now[model] for model in "ab"} == where
    assert sorted(now.values()) == [0, 1, 2]


def test_rates_that_fall_slowly_free_devices_too() -> None:
    wanted = [demand("bert", 8000, 40), demand("vgg16", 8000, 40)]
    found = plan(H200, wanted, Inventory(gpus=8), None, APART)
    assert isinstance(found, Plan)
    devices, kept = [len(found.gpus)], 0
    for _ in range(20):
        wanted = [msgspec.structs.replace(d, rate=0.9 * d.rate) for d in wanted]
        found = plan(H200, wanted, Inventory(gpus=8), msgspec.json.decode(msgspec.json.encode(found), type=Plan), APART)
        assert isinstance(found, Plan)
        devices.append(len(found.gpus))
        kept += found.kept
    fresh = plan(H200, wanted, Inventory(gpus=8), None, APART)
    assert isinstance(fresh, Plan)
    assert kept
    assert devices[0] > devices[-1] == len(fresh.gpus)


def test_fewer_gpus_than_before_do_not_keep_the_plan() -> None:
    wanted = [demand("resnet50", 30_000, 10)]
    first = plan(H200, wanted, Inventory(gpus=4))
    assert isinstance(first, Plan)
    moved = msgspec.structs.replace(
        first, gpus=tuple(msgspec.structs.replace(gpu, index=gpu.index + 2) for gpu in first.gpus)
    )
    again = plan(H200, wanted, Inventory(gpus=2), moved)
    assert isinstance(again, Plan)
    assert not again.kept
    assert all(gpu.index < 2 for gpu in again.gpus)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (demand("resnet50", -1, 10), "-1 requests/s"),
        (demand("resnet50", float("nan"), 10), "nan requests/s"),
        (demand("resnet50", 1, 0), "SLO is 0 ms"),
        (demand("resnet50", 1, -5), "SLO is -5 ms"),
        (Demand(model="resnet50", rate=1, slo_ms=1, variation=-1), "variation"),
        (demand("resnet5", 1, 10), "no profile of model 'resnet5'"),
    ],
)
def test_nonsense_is_refused_with_the_models_name(wanted: Demand, message: str) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        plan(H200, [wanted], Inventory(gpus=1))
    assert wanted.model in str(caught.value)
    assert caught.value.hint


def test_nonsense_around_the_demands() -> None:
    good = [demand("resnet50", 1, 10)]
    for options, inventory, policy in (
        (PlanOptions(quantile=1.0), Inventory(gpus=1), "nway"),
        (PlanOptions(grid=101), Inventory(gpus=1), "nway"),
        (PlanOptions(), Inventory(gpus=0), "nway"),
        (PlanOptions(), Inventory(gpus=1), "nways"),
        (PlanOptions(), Inventory(gpus=9), "exhaustive"),
    ):
        with pytest.raises(InvalidValue):
            plan(H200, good, inventory, None, options, policy=policy)
    with pytest.raises(InvalidValue, match="twice"):
        plan(H200, good * 2, Inventory(gpus=1))


def test_an_slo_that_no_device_can_meet_says_why() -> None:
    made = plan(world(m=scaling(10.0)), [demand("m", 1, 19)], Inventory(gpus=100))
    assert isinstance(made, Infeasible)
    assert made.why == (
        "m: one request takes 10 ms on a whole device; one that just missed another waits 20 ms, its SLO is 19 ms",
    )


def test_too_little_memory_says_why() -> None:
    made = plan(world(m=scaling(1.0, weights_mib=9500)), [demand("m", 1, 10)], Inventory(gpus=1))
    assert isinstance(made, Infeasible)
    assert "MiB" in made.why[0]


def test_too_few_gpus_say_how_many_would_do() -> None:
    wanted = [demand("m", 2500, 10)]
    profiles = world(m=scaling(1.0))
    made = plan(profiles, wanted, Inventory(gpus=1), None, EXACT)
    assert isinstance(made, Infeasible)
    assert made.needed == 3
    assert isinstance(plan(profiles, wanted, Inventory(gpus=3), None, EXACT), Plan)


def test_a_rate_beyond_all_devices_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(*_: object) -> None:
        raise AssertionError("a search of that size takes minutes")

    monkeypatch.setitem(POLICIES, "nway+type", dataclasses.replace(POLICIES["nway+type"], pack=pack))
    made = plan(world(m=scaling(1.0)), [demand("m", 2e7, 10)], Inventory(gpus=4), None, EXACT)
    assert isinstance(made, Infeasible)
    assert made.needed is not None
    assert made.needed > 64
    assert made.why[0] == f"{made.needed} GPUs are needed, there are 4"


def test_nothing_demanded_is_a_plan_without_gpus() -> None:
    for wanted in ([], [demand("resnet50", 0, 10)]):
        made = plan(H200, wanted, Inventory(gpus=1))
        assert isinstance(made, Plan)
        assert made.gpus == ()


def test_headroom_grows_with_the_variation() -> None:
    def placed(variation: float, quantile: float) -> float:
        wanted = [Demand(model="resnet50", rate=400, slo_ms=20, variation=variation)]
        made = plan(H200, wanted, Inventory(gpus=1), None, PlanOptions(quantile=quantile))
        assert isinstance(made, Plan)
        return sum(task.rate for task in made.tasks())

    assert placed(1, 0.5) == pytest.approx(400)
    assert placed(1, 0.99) == pytest.approx(400 + 2.326 * 20, rel=1e-3)
    assert placed(3, 0.99) == pytest.approx(400 + 3 * 2.326 * 20, rel=1e-3)
    assert placed(0, 0.99) == pytest.approx(400)


def test_weights_are_held_once_by_one_process_and_once_a_gpu_let_by_mps() -> None:
    # Ten gpu-lets' worth of one model of 2000 MiB: five fit one device when each holds its own copy.
    profiles = world(big=scaling(1.0, knee=0.1, weights_mib=2000), other=scaling(1.0, knee=0.1, weights_mib=2000))
    wanted = [demand("big", 5000, 10), demand("other", 2000, 10)]
    green = plan(profiles, wanted, Inventory(gpus=3), None, EXACT)
    mps = plan(profiles, wanted, Inventory(gpus=3), None, msgspec.structs.replace(EXACT, executor="mps"))
    assert isinstance(green, Plan)
    assert isinstance(mps, Plan)
    assert len(green.gpus) == 1
    assert len(mps.gpus) == 2


def test_the_slow_down_by_hand() -> None:
    from gemlet.serve.plan.search.interference import Contention

    me = Vector(dram=0.5, l2=0.2, compute=1.0)
    half = Contention(dram=0.4, l2=0.2, compute=0.6)
    assert slowdown_beside(me, [half]) == pytest.approx(1 + 0.5 * 0.4), "the L2's 0.04 is part of the same path"
    assert slowdown_beside(me, [half] * 3) == pytest.approx(1 + 0.5 * 1.0)  # no memory has more than all of it
    assert slowdown_beside(me, [half], over=0.2) == pytest.approx(1.2 + 0.2 * 0.6)
    assert slowdown_beside(Vector(l2=0.7, dram=0.1), [half]) == pytest.approx(1 + 0.7 * 0.2)
    assert slowdown_beside(msgspec.structs.replace(me, beside=0.3), [half]) == pytest.approx(1.3)
    assert slowdown_beside(msgspec.structs.replace(me, beside=0.3), []) == 1.0


def test_sizes_are_the_groups_that_the_driver_makes() -> None:
    profiles = world(a=scaling(1.0))
    assert grid_of(profiles, PlanOptions()) == 10
    nine = msgspec.structs.replace(profiles, device=msgspec.structs.replace(profiles.device, groups=9))
    assert grid_of(nine, PlanOptions()) == 9, "the tenth cannot be given to anybody alone"
    made = plan(nine, [demand("a", 300, 20)], Inventory(gpus=1), None, PlanOptions(quantile=0.5))
    assert isinstance(made, Plan)
    assert made.gpus[0].gpu_lets[0].sm == pytest.approx(3 / 9, abs=1e-5)


def test_a_neighbour_presses_as_much_as_it_gets_done() -> None:
    profiles = world(
        even=scaling(1.0, **DRAM_BOUND), early=scaling(1.0, knee=0.5, **DRAM_BOUND), other=scaling(1.0, **COMPUTE_BOUND)
    )
    assert contention(profiles, 0.5, ["even"]).dram == pytest.approx(0.5), "half of the SMs, half of the work"
    assert contention(profiles, 0.5, ["early"]).dram == pytest.approx(1.0), "half of the SMs, all of the work"
    assert contention(profiles, 0.25, ["early"]).dram == pytest.approx(0.5)
    # The worst of the models that take turns.
    assert contention(profiles, 0.5, ["even", "other"]) == pytest.approx((0.5, 0.0, 1.0))
    assert contention(profiles, 0.0, ["even"]).dram == 0


def test_a_small_rate_on_an_empty_device_has_the_smallest_gpu_let_and_not_what_was_left() -> None:
    found = plan(H200, [demand("resnet50", 200, 25), demand("vgg16", 100, 25)], Inventory(gpus=1))
    assert isinstance(found, Plan)
    for gpu_let in found.gpus[0].gpu_lets:
        assert gpu_let.sm == pytest.approx(1 / grid_of(H200, PlanOptions()))
        assert "the smallest there is; serves up to" in gpu_let.why[0]


def test_interference_makes_gpu_lets_larger_and_says_so() -> None:
    profiles = world(a=scaling(1.0, **DRAM_BOUND), b=scaling(1.0, **DRAM_BOUND))
    wanted = [demand("a", 310, 10), demand("b", 310, 10)]
    exact = PlanOptions(quantile=0.5, grid=10, max_models=1, pool_models=0)
    blind = plan(profiles, wanted, Inventory(gpus=1), None, msgspec.structs.replace(exact, interference=False))
    seeing = plan(profiles, wanted, Inventory(gpus=1), None, exact)
    assert isinstance(blind, Plan)
    assert isinstance(seeing, Plan)
    assert [gpu_let.sm for gpu_let in blind.gpus[0].gpu_lets] == [0.4, 0.4]
    assert all(gpu_let.sm > 0.4 for gpu_let in seeing.gpus[0].gpu_lets)
    assert any("slower" in reason for reason in seeing.gpus[0].gpu_lets[0].why)
    # The blind plan does not hold for someone who sees.
    assert verify(blind, profiles, Inventory(gpus=1), exact) != []


@pytest.mark.parametrize("grid", [5, 10])
def test_ending_turns_on_a_device_whose_other_gpu_lets_grow(grid: int) -> None:
    # Two shared gpu-lets on one device: what leaves the first makes the second grow.
    rates = {"resnet50": (1, 5), "bert": (1000, 20), "dlrm": (1000, 20), "mobilenet_v2": (100, 50), "vgg16": (1, 2)}
    wanted = [demand(model, rate, slo) for model, (rate, slo) in rates.items()]
    options = PlanOptions(grid=grid, quantile=0.5, effort=200)
    for policy in ("nway", "nway+type"):
        made = plan(H200, wanted, Inventory(gpus=6), None, options, policy=policy)
        assert isinstance(made, Plan)
        keep_promises(made, 6, POLICIES[policy].adapt(options))
