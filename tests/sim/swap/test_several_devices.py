"""Work that goes to one device and touches memory of another, on which it may be away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT

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


def take_the_place(s: Swapping, second: bytes, program: Program) -> None:
    """Another program's memory takes the place of piece 0."""
    other = s.start("b", **TWO)
    other.done("device", 1)
    other.done("alloc", 0, 12 * MIB)
    other.done("fill", 0, 9)
    memory = client(s, second, program)["movable"]
    assert memory["resident"] < memory["bytes"]


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
