"""Each policy on cases worked out by hand from the papers' descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import modelled, profile_files
from gemlet.serve.profiles.profile import Vector
from tests.unit.serve.cases import COMPUTE_BOUND, DRAM_BOUND, batching, demand, scaling, world

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

EXACT = PlanOptions(quantile=0.5, grid=10)
APART = PlanOptions(quantile=0.5, grid=10, pool_models=0)  # what becomes of it as a pool is in test_pools.py
Shape = list[list[tuple[float, tuple[str, ...]]]]


def shape(profiles: Profiles, wanted: list[Demand], policy: str, gpus: int = 9, options: PlanOptions = EXACT) -> Shape:
    """Sizes and models, by GPU."""
    made = plan(profiles, wanted, Inventory(gpus=gpus), None, options, policy=policy)
    assert isinstance(made, Plan), made
    return [
        [(gpu_let.sm, tuple(sorted(task.model for task in gpu_let.tasks))) for gpu_let in gpu.gpu_lets]
        for gpu in made.gpus
    ]


# One request takes 1 ms on the whole device and there is no gain by batching: 1000 requests/s a device, 100 a tenth.
LINEAR = world(a=scaling(1.0), b=scaling(1.0), c=scaling(1.0))
# A tenth of the device serves as much as all of it: 1000 requests/s.
TINY = world(a=scaling(1.0, knee=0.1), b=scaling(1.0, knee=0.1), c=scaling(1.0, knee=0.1))


def test_exclusive_rounds_every_model_up_to_whole_devices() -> None:
    assert shape(LINEAR, [demand("a", 1001, 100), demand("b", 1, 100)], "exclusive") == [
        [(1.0, ("a",))],
        [(1.0, ("a",))],
        [(1.0, ("b",))],
    ]


def test_timeshare_packs_rests_the_fullest_first() -> None:
    # 0.75 and 0.2 of a device go together; 0.4 would not fit to 0.75 and opens another.
    wanted = [demand("a", 750, 200), demand("b", 400, 200), demand("c", 200, 200)]
    assert shape(LINEAR, wanted, "timeshare") == [[(1.0, ("a", "c"))], [(1.0, ("b",))]]


def test_timeshare_saturates_whole_devices_first() -> None:
    made = plan(LINEAR, [demand("a", 2100, 200)], Inventory(gpus=9), None, EXACT, policy="timeshare")
    assert isinstance(made, Plan)
    assert [round(task.rate) for task in made.tasks()] == [1000, 1000, 100]


def test_nexus_example_of_batches_that_do_not_fit_together() -> None:
    # L(b) = 40 + 2 b ms. Alone at 100 ms a device takes b = 5, 100 requests/s; two with 25/s each need turns of at
    # least 42 ms twice in a cycle, and 84 + 44 > 100.
    profiles = world(a=batching(40, 2), b=batching(40, 2))
    wanted = [demand("a", 25, 100), demand("b", 25, 100)]
    assert len(shape(profiles, wanted, "timeshare")) == 2
    relaxed = [demand("a", 25, 200), demand("b", 25, 200)]
    assert shape(profiles, relaxed, "timeshare") == [[(1.0, ("a", "b"))]]


def test_static_halves() -> None:
    wanted = [demand("a", 400, 100), demand("b", 300, 100)]
    assert shape(LINEAR, wanted, "static") == [[(0.5, ("a",)), (0.5, ("b",))]]


def test_static_keeps_the_sizes_and_models_it_is_given() -> None:
    first = plan(LINEAR, [demand("a", 290, 100), demand("b", 690, 100)], Inventory(gpus=1), None, EXACT)
    assert isinstance(first, Plan)
    sizes = [(gpu_let.sm, gpu_let.tasks[0].model) for gpu_let in first.gpus[0].gpu_lets]
    assert sizes == [(0.7, "b"), (0.3, "a")]
    again = plan(
        LINEAR, [demand("a", 100, 100), demand("b", 600, 100)], Inventory(gpus=1), first, EXACT, policy="static"
    )
    assert isinstance(again, Plan)
    assert [(gpu_let.sm, gpu_let.tasks[0].model) for gpu_let in again.gpus[0].gpu_lets] == sizes
    full = plan(LINEAR, [demand("a", 310, 100), demand("b", 1, 100)], Inventory(gpus=1), first, EXACT, policy="static")
    assert isinstance(full, Infeasible)
    unknown = plan(LINEAR, [demand("c", 1, 100)], Inventory(gpus=1), first, EXACT, policy="static")
    assert isinstance(unknown, Infeasible)
    assert "c: is on none of the fixed gpu-lets" in unknown.why


def test_static_shares_that_pass_the_device() -> None:
    first = plan(LINEAR, [demand("a", 290, 100), demand("b", 690, 100)], Inventory(gpus=1), None, EXACT)
    assert isinstance(first, Plan)
    (gpu,) = first.gpus
    wide = msgspec.structs.replace(
        gpu, gpu_lets=tuple(msgspec.structs.replace(gpu_let, sm=0.7) for gpu_let in gpu.gpu_lets)
    )
    given = msgspec.structs.replace(first, gpus=(wide,))
    wanted = [demand("a", 10, 100), demand("b", 10, 100)]
    made = plan(LINEAR, wanted, Inventory(gpus=1), given, EXACT, policy="static")
    assert isinstance(made, Infeasible)
    assert made.why == ("GPU 0: the fixed shares sum to 140%, more than the device",)


def test_gpulet_splits_a_device_in_two_at_most() -> None:
    # Three models that need a fifth each: the third takes its turns with another, or needs a second device.
    made = shape(TINY, [demand(m, 900, 2.5) for m in "abc"], "gpulet")
    assert all(len(gpu) <= 2 for gpu in made)
    assert len(made) == 2
    assert len(shape(TINY, [demand(m, 900, 2.5) for m in "abc"], "nway")) == 1


def test_sizes_are_those_that_the_device_splits_into() -> None:
    device = msgspec.structs.replace(LINEAR.device, sms=132, sm_step=8, groups=15)  # 12 SMs fill no group
    profiles = msgspec.structs.replace(LINEAR, device=device)
    ((first, second),) = shape(profiles, [demand("a", 600, 100), demand("b", 390, 100)], "nway")
    assert (first, second) == ((0.6, ("a",)), (0.4, ("b",)))
    ((only,),) = shape(profiles, [demand("a", 190, 100)], "nway")
    assert only == (0.2, ("a",))


def test_gpulet_sizes_are_glets() -> None:
    made = shape(LINEAR, [demand("a", 350, 10), demand("b", 550, 10)], "gpulet")
    assert made == [[(0.6, ("b",)), (0.4, ("a",))]]


@pytest.mark.parametrize("rate", [20, 100, 180, 260, 340])
def test_gpulet_takes_turns_elsewhere_when_a_new_neighbour_leaves_too_little(rate: float) -> None:
    # a, b and c fit 0.2 of the device by turns, but not beside d: one of them must go to d's gpu-let.
    touchy = {"sensitivity": Vector(dram=1.0), "pressure": Vector(dram=1.0)}
    profiles = world(**{name: scaling(1.0, **touchy) for name in "abcd"})
    wanted = [demand("a", 20, 30), demand("b", 21, 30), demand("c", 22, 30), demand("d", rate, 30)]
    made = plan(profiles, wanted, Inventory(gpus=1), None, EXACT, policy="gpulet")
    assert isinstance(made, Plan)
    ((first, second),) = [gpu.gpu_lets for gpu in made.gpus]
    assert (first.sm, second.sm) == (0.8, 0.2)
    assert len(first.tasks) + len(second.tasks) >= 4


def test_nway_takes_whole_devices_by_turns_where_neighbours_cost_too_much() -> None:
    touchy = {"sensitivity": Vector(dram=2.0), "pressure": Vector(dram=1.0)}
    profiles = world(**{name: scaling(1.0, **touchy) for name in "abc"})
    wanted = [demand("a", 520, 30), demand("b", 521, 30), demand("c", 522, 30)]
    assert len(shape(profiles, wanted, "nway+type")) == 2


def test_selftuning_finds_a_share_that_serves() -> None:
    made = plan(
        LINEAR, [demand("a", 250, 100), demand("b", 410, 100)], Inventory(gpus=1), None, EXACT, policy="selftuning"
    )
    assert isinstance(made, Plan)
    shares = {gpu_let.tasks[0].model: gpu_let.sm for gpu_let in made.gpus[0].gpu_lets}
    assert 0.25 <= shares["a"] <= 0.5
    assert 0.41 <= shares["b"] <= 0.6


def test_selftuning_is_fair_when_there_is_too_little() -> None:
    wanted = [demand("a", 100, 100), demand("b", 980, 100)]
    made = plan(LINEAR, wanted, Inventory(gpus=1), None, EXACT, policy="selftuning")
    assert isinstance(made, Infeasible)
    assert made.why[0].startswith("b:")  # the small one is met first


def test_nway_takes_many_small_gpu_lets() -> None:
    wanted = [demand(m, 900, 10) for m in "abc"]
    assert shape(TINY, wanted, "nway", options=APART) == [[(0.1, ("a",)), (0.1, ("b",)), (0.1, ("c",))]]


def test_nway_lets_rests_take_turns() -> None:
    # Eleven models of a twentieth of a device each: ten gpu-lets would not do, turns do.
    names = [f"m{n:02}" for n in range(11)]
    profiles = world(**{name: scaling(1.0) for name in names})
    assert len(shape(profiles, [demand(name, 50, 200) for name in names], "nway")) == 1


def test_nway_does_not_take_turns_where_there_is_room() -> None:
    wanted = [demand("a", 50, 200), demand("b", 50, 200), demand("c", 250, 200)]
    assert shape(LINEAR, wanted, "nway", options=APART) == [[(0.3, ("c",)), (0.1, ("a",)), (0.1, ("b",))]]


def test_nway_does_not_scatter_a_model_where_there_is_room() -> None:
    # Each size serves as much for each SM; ten gpu-lets of a tenth would do, but one is simpler and ten times faster.
    assert shape(LINEAR, [demand("a", 990, 200)], "nway") == [[(1.0, ("a",))]]


def test_ideal_takes_all_seven_models_of_glets_game() -> None:
    wanted = [demand(f"lenet{n}", 9000, 5) for n in range(1, 7)] + [demand("resnet50", 9000, 10)]
    known = profile_files.load_profiles(Path("h200"))
    made = plan(known, wanted, Inventory(gpus=2), None, EXACT, policy="ideal")
    assert isinstance(made, Plan)
    assert {task.model for task in made.tasks()} == {each.model for each in wanted}


def test_exhaustive_finds_what_no_two_way_split_can() -> None:
    wanted = [demand(m, 900, 2.5) for m in "abc"]
    options = PlanOptions(quantile=0.5, grid=5)
    assert isinstance(plan(TINY, wanted, Inventory(gpus=1), None, options, policy="ideal"), Infeasible)
    found = plan(TINY, wanted, Inventory(gpus=1), None, options, policy="exhaustive")
    assert isinstance(found, Plan)
    assert len(found.gpus[0].gpu_lets) == 3


def test_ideal_tries_every_two_way_split() -> None:
    # 79 % and 19.5 %: only 80/20 does.
    wanted = [demand("a", 790, 10), demand("b", 195, 10)]
    assert shape(LINEAR, wanted, "ideal", gpus=1, options=ALONE) == [[(0.8, ("a",)), (0.2, ("b",))]]


@pytest.mark.parametrize("rates", [(1, 2, 3), (3, 3, 3), (0, 4, 1), (2, 2, 5)])
def test_nway_is_as_good_as_exhaustive_here(rates: tuple[int, ...]) -> None:
    wanted = [demand(m, 95.0 * rate, 50) for m, rate in zip("abc", rates, strict=True) if rate]
    options = PlanOptions(quantile=0.5, grid=5)
    best = plan(LINEAR, wanted, Inventory(gpus=2), None, options, policy="exhaustive")
    ours = plan(LINEAR, wanted, Inventory(gpus=2), None, options, policy="nway")
    assert isinstance(best, Plan)
    assert isinstance(ours, Plan)
    assert len(ours.gpus) == len(best.gpus)


@pytest.mark.parametrize(
    "fifths",  # of what two devices serve of each model
    [
        {"vgg16": 2, "bert": 2, "mobilenet_v2": 2},
        {"resnet50": 1, "bert": 2, "mobilenet_v2": 3},
        {"bert": 3, "mobilenet_v2": 3},
    ],
)
def test_gpu_lets_of_a_model_are_relieved_where_they_are_too_full_for_a_neighbour(fifths: dict[str, int]) -> None:
    known = modelled.h200()
    options = PlanOptions(quantile=0.5, grid=5)
    wanted = []
    for model, parts in fifths.items():
        slo = max(5.0, 2 * known.models[model].surface.latency(1.0, 32))
        whole = Timing(known, {model: slo}, 5).capacity(model, 5).rate
        wanted.append(demand(model, 0.2 * 2 * parts * whole, slo))
    made = plan(known, wanted, Inventory(gpus=2), None, options, policy="nway+type")
    assert isinstance(made, Plan), made
    assert verify(made, known, Inventory(gpus=2), options) == []


# Two models that live off the memory and two that compute: as neighbours, equals hurt and opposites do not.
OPPOSITES = world(
    m1=scaling(1.0, **DRAM_BOUND), m2=scaling(1.0, **DRAM_BOUND),
    c1=scaling(1.0, **COMPUTE_BOUND), c2=scaling(1.0, **COMPUTE_BOUND),
)  # fmt: skip
ALONE = PlanOptions(quantile=0.5, grid=10, max_models=1)  # without turns, which are another way out
FOUR = [demand(m, 450, 20) for m in ("m1", "m2", "c1", "c2")]


def test_types_pair_opposites() -> None:
    made = shape(OPPOSITES, FOUR, "nway+type", options=ALONE)
    assert len(made) == 2
    for gpu in made:
        assert sorted({model[0] for _, (model,) in gpu}) == ["c", "m"]


def test_without_types_every_neighbour_may_be_the_worst() -> None:
    assert len(shape(OPPOSITES, FOUR, "nway", options=ALONE)) > 2


def test_types_gain_nothing_where_all_are_alike() -> None:
    alike = world(**{name: scaling(1.0, **DRAM_BOUND) for name in ("m1", "m2", "m3", "m4")})
    wanted = [demand(f"m{n}", 300, 20) for n in range(1, 5)]
    assert len(shape(alike, wanted, "nway")) == len(shape(alike, wanted, "nway+type"))


def test_turns_that_gpulet_took_for_higher_rates_are_judged_by_the_rates_themselves() -> None:
    # With a margin for neighbours three models take turns; with their own rates that cycle does not hold.
    known = profile_files.load_profiles(Path("h200"))
    rates = {"densenet161": 215, "vgg16": 191, "resnet50": 297, "bert": 2128, "decoder": 592}
    wanted = [demand(model, rate, 17 if model == "densenet161" else 10) for model, rate in rates.items()]
    options = PlanOptions(quantile=0.5, pool_models=0, hop_ms=0.4)
    made = plan(known, wanted, Inventory(gpus=1), None, options, policy="gpulet")
    assert isinstance(made, Infeasible)
    assert any("elastic partitioning finds no place for all of" in line for line in made.why)
    more = plan(known, wanted, Inventory(gpus=2), None, options, policy="gpulet")
    assert isinstance(more, Plan)
    assert verify(more, known, Inventory(gpus=2), options) == []
