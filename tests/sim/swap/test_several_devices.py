"""Work that goes to one device and touches memory of another, on which it may be away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.swap.conftest import Program, Swapping

    Make = Callable[..., Swapping]

MIB = 1 << 20
TWO = {"GEMLET_SIM_DEVICES": "2"}


def second_device(s: Swapping, *, capacity: int | None = None) -> bytes:
    uuid = s.uuid(1, **TWO)
    s.server.add_device(uuid, 1, context_estimate=CONTEXT)
    if capacity is not None:
        s.server.set_capacity(uuid, capacity * MIB + 2 * CONTEXT)
    return uuid


def client(s: Swapping, uuid: bytes, program: Program) -> dict[str, Any]:
    return next(
        c
        for d in s.server.snapshot()["devices"]
        if d["uuid"] == uuid
        for g in d["groups"]
        for c in g["clients"]
        if c["pid"] == program.running.pid
    )


def both(s: Swapping, program: Program) -> None:
    """It has piece 0 on the second device and piece 1 on the first, which is its own."""
    for device, piece in ((1, 0), (0, 1)):
        program.done("device", device)
        program.done("alloc", piece, 12 * MIB)
        program.done("fill", piece, 3 + piece)


def take_the_place(s: Swapping, second: bytes, program: Program) -> Program:
    """Another program's memory takes the place of piece 0."""
    other = s.start("b", **TWO)
    other.done("device", 1)
    other.done("alloc", 0, 12 * MIB)
    other.done("fill", 0, 9)
    memory = client(s, second, program)["movable"]
    assert memory["resident"] < memory["bytes"]
    return other


@pytest.mark.parametrize("first", [None, 100], ids=["stays", "moves"])
def test_a_copy_finds_memory_of_another_device(swapping: Make, first: int | None) -> None:
    """Whether the memory of the device that copies can move or not."""
    s = swapping(first)
    second = second_device(s, capacity=20)
    program = s.start("a", **TWO)
    both(s, program)
    take_the_place(s, second, program)
    program.done("copy", 0, 1)
    program.done("all")


@pytest.mark.parametrize("first", [None, 100], ids=["stays", "moves"])
def test_one_area_has_memory_of_both(swapping: Make, first: int | None) -> None:
    """Reserved, given access to and unmapped at once. What another device has access to stays from then on."""
    s = swapping(first)
    second = second_device(s, capacity=20)
    program = s.start("a", **TWO)
    program.done("vreserve", 0, 24 * MIB)
    for device, piece in ((1, 0), (0, 1)):
        program.done("device", device)
        program.done("vcreate", piece, 12 * MIB)
        program.done("vmap", 0, piece * 12 * MIB, 12 * MIB, piece)
        program.done("vaccess", 0, piece * 12 * MIB, 12 * MIB, 3)
        program.done("vpiece", 0, piece * 12 * MIB, 12 * MIB, piece)
    program.done("fill", 0, 3)
    program.done("fill", 1, 4)
    other = take_the_place(s, second, program)
    assert program.ask("vgetaccess", 0, 0).startswith("0 ")
    program.done("copy", 0, 1)
    program.done("all")
    assert client(s, second, program)["movable"]["bytes"] == 12 * MIB
    assert program.number("vaccess", 0, 0, 24 * MIB, 3) == 2  # the other one could not come back
    other.done("check", 0)
    other.done("free", 0)
    program.done("vaccess", 0, 0, 24 * MIB, 3)
    eventually(lambda: client(s, second, program)["movable"]["bytes"] == 0)
    program.done("add", 0, 1)  # a kernel of the first device
    program.done("all")
    program.done("vunmap", 0, 0, 24 * MIB)
    program.done("vrelease", 0)
    program.done("vrelease", 1)
    program.done("vunreserve", 0)
    eventually(lambda: client(s, second, program)["memory"] == 0)


def test_large_memory_that_another_device_may_use_stays(swapping: Make) -> None:
    s = swapping(100)
    second = second_device(s, capacity=200)
    program = s.start("a", **TWO)
    program.done("device", 1)
    program.done("device", 0)  # both have a context
    program.done("device", 1)
    for area, mib in ((0, 140), (1, 20)):
        program.done("vreserve", area, mib * MIB)
        program.done("vcreate", area, mib * MIB)
        program.done("vmap", area, 0, mib * MIB, area)
        program.done("vaccess", area, 0, mib * MIB, 3)
        program.done("vpiece", area, 0, mib * MIB, area)
        program.done("fill", area, area)
    program.done("device", 0)
    program.done("vaccess", 0, 0, 140 * MIB, 3)
    eventually(lambda: client(s, second, program)["movable"]["bytes"] == 20 * MIB)
    assert client(s, second, program)["memory"] == 160 * MIB
    other = s.start("b", **TWO)
    other.done("device", 1)
    assert other.number("alloc", 0, 100 * MIB) == 2
    other.done("alloc", 0, 50 * MIB)
    other.done("fill", 0, 9)
    assert client(s, second, program)["movable"]["resident"] < 20 * MIB
    program.done("add", 0, 1)
    program.done("all")
    for area, mib in ((0, 140), (1, 20)):
        program.done("vunmap", area, 0, mib * MIB)
        program.done("vrelease", area)
    eventually(lambda: client(s, second, program)["memory"] == 0)


@pytest.mark.parametrize("first", [None, 100], ids=["stays", "moves"])
def test_a_graph_finds_memory_of_another_device(swapping: Make, first: int | None) -> None:
    s = swapping(first)
    second = second_device(s, capacity=20)
    program = s.start("a", **TWO)
    both(s, program)
    program.done("capture")
    program.done("add", 1, 0)
    program.done("elsewhere", 1, 0, 5)
    program.done("endcapture")
    take_the_place(s, second, program)
    program.done("replay", 0, 5)
    program.done("all")


def test_a_graph_is_charged_on_all_its_devices(swapping: Make) -> None:
    s = swapping()
    second = second_device(s)
    program = s.start("a", **TWO)
    both(s, program)
    program.done("capture")
    program.done("elsewhere", 1, 0, 5)
    program.done("endcapture")

    def used() -> int:
        device = next(d for d in s.server.snapshot()["devices"] if d["uuid"] == second)
        return sum(int(g["used_ns"]) for g in device["groups"])

    before = used()
    for _ in range(40):  # of 5 ms each
        program.done("replay", 0, 5)
    program.done("all")
    assert used() - before > 100_000_000
