"""kill -9 at every moment, a daemon that goes and comes back: what was moved is right, what was held is free."""

from __future__ import annotations

import time

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually

MIB = 1 << 20

Make = "Callable[..., Any]"


@pytest.mark.parametrize("after", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_a_killed_program_makes_room(swapping: Make, after: float) -> None:
    """Killed while it leaves, is away, or comes back: the other gets its turn and has its bytes."""
    s = swapping(200)
    a, b = s.two(150, 3)
    a.tell("work", 60, 1)
    b.tell("work", 1.5, 1)
    time.sleep(0.7 + after)
    a.running.kill()
    assert int(b.answer()) >= 0
    b.done("all")
    eventually(lambda: s.device()["held"] == CONTEXT + 150 * MIB)
    assert s.memory(b)["here"]


@pytest.mark.parametrize("after", [0, 2, 5, 10, 20, 40, 80])
def test_a_program_exits_while_its_memory_moves(swapping: Make, after: int) -> None:
    """The thread that moves it calls the driver all the time, and must stop before the driver is torn down."""
    s = swapping(200)
    a, b = s.two(150, 3)
    a.done("add", 0, 1)
    b.tell("work", 0.5, 1)  # sends the memory of the other one away
    a.tell("quit", after)
    assert a.running.end()[0] == 0
    assert int(b.answer()) >= 0
    b.done("all")
    eventually(lambda: s.device()["held"] == CONTEXT + 150 * MIB)


def test_no_client_starves(swapping: Make) -> None:
    s = swapping(100)
    s.capacity(100 + CONTEXT // MIB)
    programs = [s.start(name) for name in "abc"]
    for program in programs:
        program.done("alloc", 0, 70 * MIB)
        program.done("fill", 0, 1)
        program.done("add", 0, 1)
    for program in programs:
        program.tell("work", 6, 0)
    rounds = [int(p.answer()) for p in programs]
    assert min(rounds) > 0, rounds
    for program in programs:
        program.done("all")
    assert s.most() <= 100 + CONTEXT // MIB


def test_a_daemon_that_goes_and_comes_back(swapping: Make) -> None:
    s = swapping(200)
    a, b = s.two(150, 3)
    assert s.away(a) > 0
    s.server.stop()
    a.done("all")  # without a daemon nothing limits it: the simulated device has room for both
    again = swapping(200)
    eventually(lambda: len([c for g in again.device()["groups"] for c in g["clients"]]) == 2)
    for program in (a, b, a):
        program.done("add", 0, 1)
        program.done("all")
    eventually(lambda: again.device()["held"] <= 2 * CONTEXT + 200 * MIB)
    assert again.memory(a)["bytes"] == again.memory(b)["bytes"] == 150 * MIB


def test_another_daemon_takes_over(swapping: Make) -> None:
    """What is away stays there, both get on, and at no time is more on the device than it may have."""
    s = swapping(200)
    a, b = s.two(150, 3)
    for _ in range(3):
        a.tell("work", 1.5, 1)
        b.tell("work", 1.5, 1)
        time.sleep(0.3)  # in the middle of it, wherever that is
        s.succeed(200)
        assert int(a.answer()) >= 0
        assert int(b.answer()) >= 0
        eventually(lambda: len([c for g in s.device()["groups"] for c in g["clients"]]) == 2)
    for program in (a, b, a):
        program.done("all")
    assert s.memory(a)["bytes"] == s.memory(b)["bytes"] == 150 * MIB
    assert s.most() <= 200
