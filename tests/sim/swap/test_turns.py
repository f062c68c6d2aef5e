"""Two programs that do not fit together: they take turns, and each finds what it left."""

from __future__ import annotations

import time
from typing import Any

from tests.sim.robustness.hurt_machine import eventually

MIB = 1 << 20

Make = "Callable[..., Any]"


def test_memory_goes_and_comes_back_as_it_was(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.two(150, 7)
    addresses = [p.number("address", 0) for p in (a, b)]
    for _ in range(3):
        for program in (a, b):
            program.done("add", 0, 5)
            program.done("all")
    assert [p.number("address", 0) for p in (a, b)] == addresses
    assert s.resident(a) + s.resident(b) <= 250
    assert s.memory(a)["moved_out"] > 0


def test_nothing_moves_while_everything_fits(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.start("a"), s.start("b")
    for program in (a, b):
        program.done("alloc", 0, 100 * MIB)
        program.done("fill", 0, 7)
        program.done("spin", 100)
        program.done("all")
    for program in (a, b):
        memory = s.memory(program)
        assert (memory["bytes"], memory["resident"], memory["here"]) == (100 * MIB, 100 * MIB, True)
        assert memory["moved_out"] == memory["moved_in"] == memory["dropped"] == 0


def test_only_the_deficit_moves(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 160 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 160 * MIB)
    b.done("fill", 0, 2)
    assert s.resident(b) == 160
    # A chunk has 64 MiB.
    assert 70 <= s.away(a) < 70 + 64
    assert s.memory(a)["moved_out"] < (70 + 64) * MIB
    a.done("all")
    assert s.resident(a) == 160


def test_an_idle_program_keeps_its_memory_until_it_is_needed(swapping: Make) -> None:
    s = swapping(250)
    a = s.start("a")
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    b = s.start("b")
    b.done("alloc", 0, 75 * MIB)
    b.done("fill", 0, 1)
    assert s.resident(a) == 150
    b.done("alloc", 1, 75 * MIB)
    b.done("fill", 1, 1)
    assert s.away(a) >= 50
    a.done("all")
    b.done("all")


def test_what_was_allocated_in_a_green_context_that_has_ended_moves(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.start("a"), s.start("b")
    a.done("green", 0, 150 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 150 * MIB)
    b.done("fill", 0, 2)
    assert s.away(a) >= 50
    for program in (a, b):
        program.done("all")


def test_busy_programs_share(swapping: Make) -> None:
    s = swapping(250)
    programs = [s.start(name) for name in "ab"]
    for program in programs:
        program.done("alloc", 0, 150 * MIB)
        program.done("fill", 0, 3)
    for program in programs:
        program.tell("work", 4, 3)
    rounds = [int(p.answer()) for p in programs]
    assert min(rounds) > 0, rounds
    for program in programs:
        program.done("all")
    assert min(s.memory(p)["moved_in"] for p in programs) > 0


def test_a_host_function_may_wait_for_a_thread_that_the_move_holds_up(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    a.done("hold")
    b.tell("alloc", 0, 150 * MIB)
    time.sleep(1)  # until a's memory is to leave; if that takes longer, nothing holds it up
    a.done("release", 1)
    assert b.answer() == "0"
    b.done("fill", 0, 2)
    for program in (a, b):
        program.done("all")


def test_small_allocations_share_slabs_and_move(swapping: Make) -> None:
    s = swapping(100)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 60 * MIB)
    a.done("fill", 0, 1)
    for i in range(1, 300):
        a.done("alloc", i, 1000 + 77 * i)
        a.done("fill", i, i)
    assert s.memory(a)["bytes"] <= 60 * MIB + 6 * 2 * MIB
    b.done("alloc", 0, 80 * MIB)
    b.done("fill", 0, 1)
    assert s.away(a) > 0
    for i in range(1, 300, 2):
        a.done("free", i)
    a.done("all")
    for i in range(2, 300, 2):
        a.done("free", i)
    eventually(lambda: s.memory(a)["bytes"] == 60 * MIB)


def test_a_freed_program_leaves_nothing(swapping: Make) -> None:
    s = swapping(250)
    a, b = s.two(175, 3)
    a.done("free", 0)  # while most of it is on the host
    eventually(lambda: s.memory(a)["bytes"] == 0)
    assert s.memory(a)["resident"] == 0
    b.done("all")
    b.done("free", 0)
    eventually(lambda: s.device()["held"] < 2 * 520 * MIB)


def test_the_host_side_is_made_ready_before_it_is_needed(swapping: Make) -> None:
    """A first touch of the host's memory takes ten times as long as a copy to it; and not while everything fits."""
    s = swapping(300, epoch_min=60_000_000_000, max_wait=60_000_000_000)
    a, b = s.start("a"), s.start("b")

    def ready(program: Any) -> int:
        return int(s.memory(program)["pinned"]) // MIB

    a.done("alloc", 0, 200 * MIB)
    a.done("fill", 0, 1)
    time.sleep(0.6)  # the mover looks every quarter of a second
    assert ready(a) == 0
    b.done("alloc", 0, 180 * MIB)  # 80 MiB of either have to be on the host when the other runs
    eventually(lambda: ready(a) >= 80 and ready(b) >= 80)
    assert s.memory(b)["moved_out"] == 0
