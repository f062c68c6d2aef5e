"""Programs that may have too little of something: addresses for the host's side, descriptors for their pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually
from tests.sim.swap.conftest import Program

if TYPE_CHECKING:
    from tests.sim.swap.conftest import Swapping

MIB = 1 << 20
Make = "Callable[..., Any]"
pytestmark = pytest.mark.skipif(
    "san.so" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer takes addresses and descriptors of its own"
)


def cramped(s: Swapping, group: str) -> Program:
    """What runs in 1 GiB of addresses, of which the driver has taken some by the time that memory may move."""
    script = f"ulimit -v {1 << 20}; exec {s.machine.program}"
    return Program(s.machine.start(group, "-c", script, command="/bin/sh"))


@pytest.mark.parametrize("how", ["alloc", "allocasync"])
def test_its_memory_stays_and_leaves_room_for_the_largest_of_others(swapping: Make, how: str) -> None:
    s = swapping(200)
    b = s.start("b")
    b.done("alloc", 0, 150 * MIB)
    b.done("fill", 0, 2)
    a = cramped(s, "a")
    a.done(how, 0, 20 * MIB)
    a.done("fill", 0, 1)
    assert a.number(how, 1, 80 * MIB) == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    for program in (a, b, a):
        program.done("add", 0, 1)
        program.done("all")
    assert s.away(b) == 0
    assert s.most() <= 200
    b.running.kill()
    b.running.wait()
    eventually(lambda: s.device()["held"] < 2 * CONTEXT)
    a.done(how, 1, 80 * MIB)
    a.running.kill()
    _, words = a.running.communicate(timeout=60)
    assert "so none of it can move" in words


def test_the_limit_of_its_group_holds(swapping: Make) -> None:
    s = swapping()
    s.server.set_group("a", memory=4096 * MIB, resident=CONTEXT + 100 * MIB)
    a = cramped(s, "a")
    a.done("alloc", 0, 80 * MIB)
    assert a.number("alloc", 1, 40 * MIB) == 2
    assert s.most() <= 80 - CONTEXT // MIB


def settled(s: Swapping, pid: int, size: int) -> bool:
    """Whether it is governed, once that is decided: of one that left, the daemon may not have read it yet."""
    governed = False

    def decided() -> bool:
        nonlocal governed
        theirs = [c for g in s.device()["groups"] for c in g["clients"] if c["pid"] == pid]
        governed = bool(theirs)
        return not size or all((c["movable"] or {}).get("bytes") == size for c in theirs)

    eventually(decided)
    return governed


def test_one_that_lacks_a_descriptor_is_not_half_governed(swapping: Make) -> None:
    """Each number of descriptors, from too few for its pages to enough for all of them."""
    s = swapping(200)
    outcomes = []
    for most in range(5, 12):
        script = f"ulimit -n {most}; exec {s.machine.program}"
        a = Program(s.machine.start("a", "-c", script, command="/bin/sh"))
        refused = a.number("alloc", 0, 150 * MIB)  # for which the driver may lack one as well
        governed = settled(s, a.running.pid, 0 if refused else 150 * MIB)
        a.running.kill()
        _, words = a.running.communicate(timeout=60)
        said = "no descriptor is left for its pages" in words
        assert governed or said, most
        outcomes.append(not said)
    assert outcomes[-1]
    assert not outcomes[0]
