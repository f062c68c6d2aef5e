"""Where the system allows the hook no thread, for a moment or for good: limits of processes, of a control group."""

from __future__ import annotations

import pytest

from tests.sim.robustness.hurt_machine import eventually

MIB = 1 << 20
ALWAYS = 1 << 30
Make = "Callable[..., Any]"


def test_one_that_may_have_threads_again_gives_its_place(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("threadless", 1)
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    b = s.start("b")
    b.done("alloc", 0, 150 * MIB)
    b.done("fill", 0, 2)  # else it waits for ever
    for program in (a, b, a):
        program.done("add", 0, 1)
        program.done("all")
    assert s.most() <= 200


@pytest.mark.parametrize("times", [1, ALWAYS])
def test_one_gets_its_place_without_a_thread(swapping: Make, times: int) -> None:
    s = swapping(200)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    b.done("threadless", times)
    b.done("alloc", 0, 150 * MIB)
    b.done("fill", 0, 2)  # else it waits for ever
    b.done("add", 0, 1)
    b.done("all")
    assert s.away(a) > 0
    assert s.most() <= 200


def test_one_without_a_thread_stays_and_says_so(swapping: Make) -> None:
    s = swapping(200)
    a, b = s.start("a"), s.start("b")
    a.done("threadless", ALWAYS)
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 150 * MIB)
    b.tell("fill", 0, 2)
    for _ in range(3):
        a.done("add", 0, 1)
    a.done("all")
    assert s.away(a) == 0
    a.running.kill()
    assert b.answer() == "0"
    eventually(lambda: s.memory(b)["here"])
    _, words = a.running.communicate(timeout=60)
    assert "no thread to move its memory" in words
    assert "hint:" in words
