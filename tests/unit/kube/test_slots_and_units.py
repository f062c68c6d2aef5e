"""The device plugin's arithmetic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.kube import slots, units
from gemlet.kube.request import BadRequest
from tests.unit.kube import fakes

A, B = fakes.FIRST, fakes.SECOND


def test_slots_are_equal_parts_with_names_the_kubelet_takes():
    gpu = fakes.GPUS[0]
    ids = slots.slot_ids(gpu, 4)
    assert len(set(ids)) == 4
    assert all(len(device) <= 63 and slots.gpu_of(device) == gpu.uuid for device in ids)
    part = slots.slot_amounts(gpu, 3)
    assert part.compute == part.limit == 33
    assert part.memory * 3 <= gpu.memory
    assert part.memory % slots.MIB == 0


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_container_takes_exactly_one_slot(count):
    with pytest.raises(BadRequest, match="exactly one slot"):
        slots.only_slot([f"{A}::{number}" for number in range(count)])


def free(a, b):
    return [f"{A}::{n}" for n in range(a)] + [f"{B}::{n}" for n in range(b)]


def test_a_preference_follows_the_ranks_as_far_as_there_is_room():
    assert {slots.gpu_of(d) for d in slots.preferred(free(2, 5), [], 2, [A, B])} == {A}
    assert {slots.gpu_of(d) for d in slots.preferred(free(2, 5), [], 2, [B, A])} == {B}
    assert {slots.gpu_of(d) for d in slots.preferred(free(2, 5), [], 3, [A, B])} == {B}
    assert {slots.gpu_of(d) for d in slots.preferred(free(5, 5), [], 2, [A, B], near=B)} == {B}


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 24), st.permutations([A, B]), st.data())
def test_a_preference_is_complete_distinct_and_on_one_gpu_where_that_can_be(a, b, size, ranks, data):
    available = free(a, b)
    size = min(size, len(available))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)) if available else []
    chosen = slots.preferred(available, must, size, ranks)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    if not must and size and size <= max(a, b):
        assert len({slots.gpu_of(device) for device in chosen}) == 1


def test_units_of_one_gpu_make_a_share():
    made = units.paired([f"{A}::c{n}" for n in range(25)], [f"{A}::m{n}" for n in range(64)])
    assert (made.compute, made.limit, made.memory) == (25, 25, 16 * fakes.GIB)


@pytest.mark.parametrize(
    ("compute", "memory", "text"),
    [
        ([f"{A}::c0"], [], "memory-units.*is missing"),
        ([], [f"{A}::m0"], "compute-units.*is missing"),
    ],
)
def test_units_of_one_kind_are_refused(compute, memory, text):
    with pytest.raises(BadRequest, match=text):
        units.paired(compute, memory)


@pytest.mark.parametrize(
    ("on_a", "on_b", "left", "chosen"),
    [
        (30, 0, {A: 30, B: 100}, A),
        (30, 20, {A: 30, B: 100}, B),  # most are of A, which has not enough
        (20, 30, {A: 50, B: 50}, B),
        (30, 20, {A: 30, B: 30}, A),  # none has enough
        (0, 30, {A: 100, B: 20}, A),  # B's units are counted for a container that is on A
        (10, 0, {}, A),
    ],
)
def test_units_are_of_the_gpu_that_has_room(on_a, on_b, left, chosen):
    ids = [f"{A}::c{n}" for n in range(on_a)] + [f"{B}::c{n}" for n in range(on_b)]
    assert units.gpu_for(ids, left) == chosen


def test_all_unit_names_are_short_and_distinct():
    names = units.compute_ids(fakes.GPUS[0]) + units.memory_ids(fakes.GPUS[0])
    assert len(names) == len(set(names)) == 100 + 80 * 4
    assert max(map(len, names)) <= 63


@given(st.uuids())
def test_a_gpu_has_a_short_name_from_which_its_uuid_comes_back(uuid):
    name = slots.short_name(f"GPU-{uuid}")
    assert len(name) == 22
    assert slots.gpu_of(f"{name}::m12345") == f"GPU-{uuid}"


@pytest.mark.parametrize("odd", ["GPU-gone", f"GPU-{'A' * 32}", "MIG-GPU-1/0/0", "x" * 22, "-" * 22, ""])
def test_what_is_no_uuid_keeps_its_name(odd):
    assert slots.short_name(odd) == odd


def gpu_of_size(gib, number=0):
    uuid = f"GPU-00000000-0000-0000-0000-0000000000{number:02x}"
    return dataclasses.replace(fakes.GPUS[0], index=number, uuid=uuid, memory=gib * fakes.GIB)


@pytest.mark.parametrize(("gib", "whole"), [(80, True), (288, True), (512, True), (513, False), (288 * 8, False)])
def test_memory_units_have_short_names_where_a_gpu_has_many(gib, whole):
    """And only there: pods of an agent before this one have the long ones."""
    gpu = gpu_of_size(gib)
    ids = units.memory_ids(gpu)
    assert len(set(ids)) == gib * 4
    assert ids[0].startswith(gpu.uuid) is whole
    assert {slots.gpu_of(device) for device in ids} == {gpu.uuid}
