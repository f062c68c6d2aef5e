"""Pools: gpu-lets of a device that serve the same models, and when a plan has them."""

from __future__ import annotations

import random
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.load import arrivals
from gemlet.serve.plan import plan_files
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.search.pool import BURST, Pool, longest, mean_contention, reserve, turns
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import modelled, profile_files
from gemlet.serve.profiles.profile import ModelProfile
from gemlet.serve.server.repository import example
from gemlet.simulate.serving.simulator import simulate
from tests.unit.serve.cases import DRAM_BOUND, batching, demand, fixed_part, scaling, world

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

EXACT = PlanOptions(quantile=0.5, grid=10)
APART = PlanOptions(quantile=0.5, grid=10, pool_models=0)
THREE = world(a=batching(1.0, 0.1), b=batching(1.5, 0.1), c=batching(0.8, 0.2))
BUSY = [demand("a", 1500, 20), demand("b", 1500, 20), demand("c", 900, 20)]


def made(profiles: Profiles, wanted: list[Demand], options: PlanOptions = EXACT, *, gpus: int = 1) -> Plan:
    found = plan(profiles, wanted, Inventory(gpus=gpus), None, options)
    assert isinstance(found, Plan), found
    return found


def attainment(profiles: Profiles, found: Plan, wanted: list[Demand], seconds: float = 4.0) -> float:
    streams = {
        d.model: arrivals.times(
            arrivals.constant(d.rate), arrivals.gaps("poisson", 1.0, random.Random(d.model)), seconds
        )
        for d in wanted
    }
    return simulate(found, profiles, streams, {d.model: d.slo_ms for d in wanted}, seconds).worst_attainment


@given(
    st.lists(st.floats(0.05, 2), min_size=1, max_size=12),
    st.floats(0.01, 5),
    st.floats(1, 2),
    st.floats(0.1, 30),
)
def test_the_longest_turn_is_the_longest(steps: list[float], rate: float, slowdown: float, budget: float) -> None:
    row = [0.0]
    for step in steps:
        row.append(row[-1] + step)

    def fits(every: float) -> bool:
        batch = max(1, ceil(rate * every - 1e-9))
        return batch < len(row) and every + row[batch] * slowdown <= budget + 1e-9

    found = longest(row, rate, slowdown, budget)
    if found <= 0:
        assert not fits(1e-6)
        return
    assert fits(found)
    assert not fits(found * 1.001 + 1e-6)


def test_a_gpu_let_alone_with_its_model_is_a_pool_of_one() -> None:
    timing = Timing(THREE, {"a": 20.0}, 10)
    can = timing.capacity("a", 5)
    for times, holds in ((0.97, True), (1.03, False)):
        found = turns(timing, [Pool((5,), {"a": can.rate * times})], None)
        assert (found is not None) is holds
    found = turns(timing, [Pool((5,), {"a": can.rate * 0.999})], None)
    assert found is not None
    assert found[0]["a"].worst_ms <= 20.0


def test_a_pool_sustains_more_bursts_than_the_same_gpu_lets_apart() -> None:
    timing = Timing(THREE, {"a": 20.0, "b": 20.0}, 10)
    rates = {"a": 900.0, "b": 900.0}
    apart = [Pool((5,), {"a": 900.0}), Pool((5,), {"b": 900.0})]
    together = [Pool((5, 5), rates)]
    assert reserve(timing, together, None) > 1.1 * reserve(timing, apart, None)


def test_bursts_cost_something_and_more_on_one_gpu_let() -> None:
    timing = Timing(world(a=fixed_part(1.0, 0.1)), {"a": 10.0}, 10)

    def left(ticks: tuple[int, ...]) -> float:
        """Of what it could do for requests that come evenly."""
        pool = Pool(ticks, {"a": 100.0})
        even = next(t / 100 for t in range(10_000, 0, -1) if turns(timing, [pool], None, times=t / 100))
        return reserve(timing, [pool], None, most=100.0) / even

    assert BURST > 0
    assert left((3,)) < left((3, 3, 3)) - 0.02 < 1


def test_short_deadlines_do_not_wait_behind_long_batches() -> None:
    profiles = world(short=fixed_part(2.0, 0.1), long=batching(2.0, 0.2))
    wanted = [demand("short", 2200, 7), demand("long", 1100, 75)]
    pooled, apart = made(profiles, wanted), made(profiles, wanted, APART)
    assert attainment(profiles, pooled, wanted) > attainment(profiles, apart, wanted) - 0.005
    timing = Timing(profiles, {"short": 7.0, "long": 75.0}, 10)
    rates = {d.model: d.rate for d in wanted}
    without_hurry = Timing(profiles, {"short": 75.0, "long": 75.0}, 10)
    assert reserve(timing, [Pool((5, 5), rates)], None) < 0.5 * reserve(without_hurry, [Pool((5, 5), rates)], None)


def test_neighbours_in_a_pool_press_in_the_mean_over_their_time() -> None:
    profiles = world(heavy=scaling(1.0, **DRAM_BOUND), light=scaling(1.0))
    timing = Timing(profiles, {"heavy": 20.0, "light": 20.0}, 10)
    equal = mean_contention(timing, Pool((5, 5), {"heavy": 100.0, "light": 100.0}), 5)
    mostly = mean_contention(timing, Pool((5, 5), {"heavy": 300.0, "light": 100.0}), 5)
    assert equal.dram == pytest.approx(0.25)  # half the time, half the device
    assert mostly.dram == pytest.approx(0.375)


def test_a_full_device_becomes_a_pool_and_serves_more() -> None:
    pooled, apart = made(THREE, BUSY), made(THREE, BUSY, APART)
    assert all(
        gpu_let.pool and {t.model for t in gpu_let.tasks} == {"a", "b", "c"} for gpu_let in pooled.gpus[0].gpu_lets
    )
    assert not any(gpu_let.pool for gpu_let in apart.gpus[0].gpu_lets)
    assert attainment(THREE, pooled, BUSY) > attainment(THREE, apart, BUSY) + 0.02
    assert attainment(THREE, pooled, BUSY) > 0.98


def test_a_pool_says_why_and_survives_json() -> None:
    found = made(THREE, BUSY)
    assert "whichever is free" in found.gpus[0].gpu_lets[0].why[0]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Plan) == found


def test_what_sustains_bursts_as_it_is_stays_apart() -> None:
    wanted = [demand("a", 100, 20), demand("b", 100, 20)]
    assert not any(gpu_let.pool for gpu_let in made(THREE, wanted).gpus[0].gpu_lets)


def test_models_that_take_little_time_have_a_gpu_let_beside_the_pool() -> None:
    known = profile_files.load_profiles(Path("h200"))
    lenets = [f"lenet{n}" for n in range(1, 7)]
    wanted = [demand("resnet50", 8000, 6), *(demand(name, 8000, 5) for name in lenets)]
    found = plan(known, wanted, Inventory(gpus=1), None, PlanOptions(quantile=0.5, max_models=6))
    assert isinstance(found, Plan)
    *large, small = found.gpus[0].gpu_lets
    assert [[task.model for task in gpu_let.tasks] for gpu_let in large] == [["resnet50"], ["resnet50"]]
    assert sorted(task.model for task in small.tasks) == lenets
    assert "cut up the others' batches" in small.why[0]
    assert verify(found, known, Inventory(gpus=1), PlanOptions(quantile=0.5, max_models=6)) == []
    for gpu_let in found.gpus[0].gpu_lets:
        slowest = max(task.slowdown for task in gpu_let.tasks)
        assert f"up to {slowest - 1:.1%} slower" in gpu_let.why[-1], "the sentence says what the table says"


def test_one_model_beside_a_pool_is_spoken_of_as_one() -> None:
    wanted = plan_files.load_service(example.SOURCE.with_name("traffic.toml")).demands
    found = plan(modelled.h200(), wanted, Inventory(gpus=1))
    assert isinstance(found, Plan)
    alone = [gpu_let for gpu_let in found.gpus[0].gpu_lets if len(gpu_let.tasks) == 1]
    assert "which takes so little time that it would" in alone[0].why[0]


def test_pools_need_one_process_for_the_device_and_few_models() -> None:
    for options in (
        msgspec.structs.replace(EXACT, executor="mps"),
        msgspec.structs.replace(EXACT, pool_models=2),
        APART,
    ):
        assert not any(gpu_let.pool for gpu_let in made(THREE, BUSY, options).gpus[0].gpu_lets)


def test_a_plan_of_pools_stays_while_it_sustains_the_rates() -> None:
    # Rates at which it sustains bursts, so that it may keep what others bring.
    first = made(THREE, [msgspec.structs.replace(d, rate=0.8 * d.rate) for d in BUSY])
    assert all(gpu_let.pool for gpu_let in first.gpus[0].gpu_lets)
    other = [demand("a", 500, 20), demand("b", 1500, 20), demand("c", 900, 20)]
    second = plan(THREE, other, Inventory(gpus=1), first, EXACT)
    assert isinstance(second, Plan)
    assert second.kept
    assert [gpu_let.sm for gpu_let in second.gpus[0].gpu_lets] == [gpu_let.sm for gpu_let in first.gpus[0].gpu_lets]
    assert sum(task.rate for task in second.tasks()) == pytest.approx(2900)
    assert verify(second, THREE, Inventory(gpus=1), EXACT) == []
    slower = [msgspec.structs.replace(d, slo_ms=d.slo_ms * 2) for d in other]
    third = plan(THREE, slower, Inventory(gpus=1), first, EXACT)
    assert isinstance(third, Plan)
    assert not third.kept


def test_devices_are_given_back_when_all_rates_fall() -> None:
    one = made(THREE, BUSY)
    first = msgspec.structs.replace(
        one,
        gpus=(one.gpus[0], msgspec.structs.replace(one.gpus[0], index=1)),
        demands=tuple(msgspec.structs.replace(d, rate=2 * d.rate) for d in BUSY),
    )
    some = plan(THREE, [BUSY[0], BUSY[1], first.demands[2]], Inventory(gpus=2), first, EXACT)
    less = plan(THREE, [msgspec.structs.replace(d, rate=d.rate / 4) for d in BUSY], Inventory(gpus=2), first, EXACT)
    assert isinstance(some, Plan)
    assert isinstance(less, Plan)
    assert some.kept
    assert len(less.gpus) == 1


def test_verify_sees_a_pool_that_is_asked_too_much() -> None:
    found = made(THREE, BUSY)
    assert verify(found, THREE, Inventory(gpus=1), EXACT) == []
    gpu_lets = [
        msgspec.structs.replace(
            gpu_let, tasks=tuple(msgspec.structs.replace(t, rate=2 * t.rate) for t in gpu_let.tasks)
        )
        for gpu_let in found.gpus[0].gpu_lets
    ]
    broken = msgspec.structs.replace(found, gpus=(msgspec.structs.replace(found.gpus[0], gpu_lets=tuple(gpu_lets)),))
    assert any("would be busy" in line for line in verify(broken, THREE, Inventory(gpus=1), EXACT))


def test_blind_to_types_every_neighbour_is_the_worst() -> None:
    profiles = world(a=scaling(1.0, **DRAM_BOUND), b=scaling(1.0), c=scaling(1.0))
    wanted = [demand(name, 260, 20) for name in "abc"]
    blind = plan(profiles, wanted, Inventory(gpus=4), None, EXACT, policy="nway")
    seeing = plan(profiles, wanted, Inventory(gpus=4), None, EXACT, policy="nway+type")
    assert isinstance(blind, Plan)
    assert isinstance(seeing, Plan)
    slow = [task.slowdown for found in (blind, seeing) for task in found.tasks() if task.model == "a"]
    assert max(slow) == slow[0]


def test_a_pool_is_not_kept_where_pools_are_not_allowed() -> None:
    pooled = made(THREE, BUSY)
    for other in (
        PlanOptions(quantile=0.5, grid=10, executor="mps"),
        APART,
        PlanOptions(quantile=0.5, grid=10, pool_models=2),
    ):
        found = plan(THREE, BUSY, Inventory(gpus=4), pooled, other)
        assert isinstance(found, Plan)
        assert not any(gpu_let.pool for gpu in found.gpus for gpu_let in gpu.gpu_lets)


def test_rates_that_fell_for_all_free_devices_whatever_models_have_no_rate() -> None:
    profiles = world(**THREE.models, idle=scaling(1.0))
    idle = demand("idle", 0, 20)
    one = made(profiles, [*BUSY, idle])
    before = msgspec.structs.replace(
        one,
        gpus=(one.gpus[0], msgspec.structs.replace(one.gpus[0], index=1)),
        demands=tuple(msgspec.structs.replace(d, rate=2 * d.rate) for d in one.demands),
    )
    for times, left in ((1.2, 2), (0.1, 1)):
        now = [*(msgspec.structs.replace(d, rate=times * d.rate) for d in BUSY), idle]
        if times > 1:  # not for all
            now[0] = msgspec.structs.replace(now[0], rate=2 * BUSY[0].rate)
        found = plan(profiles, now, Inventory(gpus=2), before, EXACT)
        assert isinstance(found, Plan)
        assert len(found.gpus) == left


def test_a_pool_of_a_device_that_is_not_cut_is_judged_too() -> None:
    whole = PlanOptions(quantile=0.5, grid=1)
    light = [msgspec.structs.replace(d, rate=d.rate / 4) for d in BUSY]
    apart = made(THREE, light, whole)
    pooled = msgspec.structs.replace(
        apart,
        gpus=tuple(
            msgspec.structs.replace(
                gpu, gpu_lets=tuple(msgspec.structs.replace(gpu_let, pool=True) for gpu_let in gpu.gpu_lets)
            )
            for gpu in apart.gpus
        ),
    )
    for times in (0.5, *(1 + step / 20 for step in range(2, 140, 3))):
        wanted = [msgspec.structs.replace(d, rate=d.rate * times) for d in light]
        assert isinstance(plan(THREE, wanted, Inventory(gpus=4), pooled, whole), Plan)


@pytest.mark.parametrize("largest", [3, 6, 24, 48, 49, 100])
def test_a_turn_as_long_as_the_largest_batch_takes_to_come_needs_no_larger_batch(largest: int) -> None:
    row = tuple((share, batch, 0.01 / share) for share in (0.5, 1.0) for batch in (1, largest))
    profiles = world(a=ModelProfile(latency=row), b=ModelProfile(latency=row))
    timing = Timing(profiles, {"a": 1e6, "b": 1e6}, 10)
    for step in range(200):
        pool = Pool((5, 5), {"a": 100.0 + step / 7, "b": 100.0 + step / 3})
        assert turns(timing, [pool], None) is not None


def test_what_a_pool_of_a_file_promises_is_judged_whatever_stands_in_it() -> None:
    found = made(THREE, BUSY)

    def changed(**more: float) -> Plan:
        return msgspec.structs.replace(
            found,
            gpus=tuple(
                msgspec.structs.replace(
                    gpu,
                    gpu_lets=tuple(
                        msgspec.structs.replace(
                            gpu_let, tasks=tuple(msgspec.structs.replace(task, **more) for task in gpu_let.tasks)
                        )
                        for gpu_let in gpu.gpu_lets
                    ),
                )
                for gpu in found.gpus
            ),
        )

    inventory = Inventory(gpus=1)
    assert any("at batch 1 already" in line for line in verify(changed(slo_ms=0.5), THREE, inventory, EXACT))
    assert all("are placed" in line for line in verify(changed(rate=0.0), THREE, inventory, EXACT))


def test_devices_and_gpu_lets_without_models_do_not_keep_a_plan_from_being_kept() -> None:
    light = [msgspec.structs.replace(d, rate=d.rate / 9) for d in BUSY]
    before = made(THREE, light, gpus=3)
    (gpu,) = before.gpus
    gpu_let = msgspec.structs.replace(gpu.gpu_lets[0], tasks=(), sm=0.1)
    empty = msgspec.structs.replace(gpu, index=0, gpu_lets=())
    idle = msgspec.structs.replace(gpu, index=1, gpu_lets=(gpu_let,))
    used = msgspec.structs.replace(gpu, index=2)
    odd = msgspec.structs.replace(before, gpus=(empty, idle, used))
    found = plan(THREE, light, Inventory(gpus=3), odd, EXACT)
    assert isinstance(found, Plan)
    assert found.kept
    assert [each.index for each in found.gpus] == [2]


def test_models_whose_batches_all_take_the_same_time_are_planned() -> None:
    """Then no batch has to wait for a longer one, and there is no margin to reckon with."""
    flat = world(a=batching(2.0, 0.0), b=batching(3.0, 0.0))
    assert {task.model for task in made(flat, [demand("a", 1000, 50), demand("b", 1000, 50)]).tasks()} == {"a", "b"}
