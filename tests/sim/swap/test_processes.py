"""Forked children, and programs with memory on several devices."""

from __future__ import annotations

from tests.sim.robustness.hurt_machine import CONTEXT

MIB = 1 << 20
Make = "Callable[..., Any]"


def test_a_forked_child_has_nothing_and_harms_nothing(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.two(16, 1)
    assert s.away(a) > 0
    a.done("fork", 0)  # while its memory is away
    a.done("all")
    a.done("fork", 0)  # and while it is here
    b.done("all")
    a.done("all")
    assert s.most() <= 20


def test_two_devices_of_which_each_has_a_capacity(swapping: Make) -> None:
    """Copies from one device's memory to the other's find both, whichever is away."""
    two = {"GEMLET_SIM_DEVICES": "2"}
    s = swapping(20)
    second = s.uuid(1, **two)
    s.server.add_device(second, 1, context_estimate=CONTEXT)
    s.server.set_capacity(second, 20 * MIB + 2 * CONTEXT)
    programs = s.start("a", **two), s.start("b", **two)
    for seed, program in enumerate(programs):
        program.done("alloc", 0, 12 * MIB)
        program.done("fill", 0, seed)
        program.done("device", 1)
        program.done("alloc", 1, 12 * MIB)
        program.done("fill", 1, 10 + seed)
    moved = [
        sum((c["movable"] or {"moved_out": 0})["moved_out"] for g in d["groups"] for c in g["clients"])
        for d in s.server.snapshot()["devices"]
    ]
    assert min(moved) > 0
    for _ in range(3):
        for program in programs:
            program.done("copy", 0, 1)
            program.done("all")
            program.done("fill", 1, 77)
            program.done("copy", 1, 0)
            program.done("all")
    assert s.most() <= 20
