"""What needs a handle of the driver's makes memory of cuMemCreate stay on the device."""

from __future__ import annotations

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually
from tests.sim.swap.mapping import FILE, MIB, WRITE, fill_device, gone, mapped

Make = "Callable[..., Any]"


@pytest.mark.parametrize("used", [False, True], ids=["at once", "in use and away"])
def test_what_is_exported_stays(swapping: Make, used: bool) -> None:
    """What one chunk backs, as it is: NCCL's buffers are in use when they are exported."""
    s = swapping(300)  # what is imported counts, too
    a = s.start("a")
    a.done("vcreate", 0, 40 * MIB, FILE)
    if used:
        a.done("vreserve", 0, 40 * MIB)
        a.done("vmap", 0, 0, 40 * MIB, 0)
        a.done("vaccess", 0, 0, 40 * MIB, WRITE)
        a.done("vpiece", 0, 0, 40 * MIB, 0)
        a.done("fill", 0, 1)
        other = fill_device(s, 280)
        other.done("alloc", 1, 2 * MIB)
        other.done("free", 0)
        other.tell("alloc", 0, 80 * MIB)
    a.done("vexport", 0, 1)
    eventually(lambda: s.memory(a)["bytes"] == 0)
    if not used:
        a.done("vreserve", 0, 40 * MIB)
        a.done("vmap", 0, 0, 40 * MIB, 0)
        a.done("vaccess", 0, 0, 40 * MIB, WRITE)
        a.done("vpiece", 0, 0, 40 * MIB, 0)
        a.done("fill", 0, 1)
    # Those who have the other name see the same bytes.
    a.done("vreserve", 1, 40 * MIB)
    a.done("vmap", 1, 0, 40 * MIB, 1)
    a.done("vaccess", 1, 0, 40 * MIB, WRITE)
    a.done("vpiece", 1, 0, 40 * MIB, 1)
    assert a.number("peek", 1, 999) == a.number("peek", 0, 999)
    a.done("vexport", 0, 2)  # again
    a.done("check", 0)
    assert a.ask("vproperties", 0) == "0 1 1 1"
    a.done("vretain", 0, MIB, 3)
    for number in (3, 0):
        a.done("vrelease", number)
    assert a.number("vrelease", 0) != 0
    a.done("check", 0)
    a.done("vforget", 0)
    a.done("vunmap", 0, 0, 40 * MIB)
    a.done("vunreserve", 0)
    assert s.most() <= 300


def test_what_many_chunks_back_cannot_be_exported_once_it_is_in_use(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("vcreate", 0, 100 * MIB, FILE)
    a.done("vexport", 0, 1)  # nothing is in it
    eventually(lambda: s.memory(a)["bytes"] == 0)
    assert s.served.used("a") >= CONTEXT + 100 * MIB
    a.done("vrelease", 0)
    a.done("vrelease", 1)
    a.running.kill()
    a = s.start("a")
    mapped(a, 0, 100, types=FILE)
    a.done("fill", 0, 1)
    assert a.number("vexport", 0, 1) == 801  # not supported
    assert a.number("vexport", 0, 1) == 801
    mapped(a, 1, 20)
    a.done("fill", 1, 2)
    assert a.number("vexport", 1, 2) == 1  # it was not made for it
    b = fill_device(s, 150)
    assert s.away(a) > 0
    a.done("all")
    b.done("all")
    a.running.kill()
    _, words = a.running.communicate(timeout=60)
    assert words.count("once it is in use") == 1


@pytest.mark.parametrize("need", ["vmulticast 0 {bytes} 0", "varray 0 {bytes}", "vfile 0 0 {bytes}"])
def test_what_the_driver_must_know_stays(swapping: Make, need: str) -> None:
    """The simulated driver has none of these calls; what is asked is that each reaches it, and the memory is right."""
    s = swapping(300)
    a = s.start("a")
    mapped(a, 1, 100)
    mapped(a, 0, 40)
    a.done("fill", 0, 1)
    fill_device(s, 200)
    assert s.away(a) >= 40
    assert set(a.ask(need.format(bytes=40 * MIB)).split()) == {"801"}
    eventually(lambda: s.memory(a)["bytes"] == 100 * MIB)
    assert s.served.used("a") == CONTEXT + 140 * MIB
    a.done("check", 0)
    gone(a, 1, 100)
    gone(a, 0, 40)
    mapped(a, 0, 40)
    a.done("fill", 0, 2)
    a.done("vrelease", 0)
    a.ask("vfile 0 0", 40 * MIB)
    eventually(lambda: s.memory(a)["bytes"] == 0)
    a.done("check", 0)
    a.done("vforget", 0)
    a.done("vunmap", 0, 0, 40 * MIB)
    a.done("vunreserve", 0)
    kept = 40 * MIB if "varray" in need else 0  # for the array, until that is destroyed
    assert s.served.used("a") == CONTEXT + kept
    mapped(a, 0, 100)
    a.done("fill", 0, 1)
    assert set(a.ask(need.format(bytes=100 * MIB)).split()) == {"801"}
    assert s.memory(a)["bytes"] == 100 * MIB
    a.done("check", 0)


def test_memory_for_tiles_stays(swapping: Make) -> None:
    s = swapping(100)
    a = s.start("a")
    a.done("vcreate", 0, 20 * MIB, 0, 1)
    assert s.memory(a).get("bytes", 0) == 0
    assert s.served.used("a") == CONTEXT + 20 * MIB
    a.done("vrelease", 0)
    eventually(lambda: s.served.used("a") == CONTEXT)


def test_what_comes_meanwhile_is_not_forgotten(swapping: Make) -> None:
    """The daemon heard how much was left behind the question for more, and both threads waited for room for ever."""
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 20)
    a.done("fill", 0, 1)
    a.done("vrounds", 300)
    assert s.memory(a)["bytes"] == 20 * MIB
    a.done("check", 0)


@pytest.mark.parametrize("away", [False, True])
def test_what_stays_leaves_room_for_the_others(swapping: Make, away: bool) -> None:
    """All of it was kept, and the other program never came back."""
    s = swapping(150)
    b = fill_device(s, 100)
    a = s.start("a")
    for number in range(4):
        mapped(a, number, 20, types=FILE)
        a.done("fill", number, number)
    if away:
        b.done("all")
    assert [a.number("vfile", number, 0, 20 * MIB) for number in range(4)] == [801, 801, 2, 2]  # 801: by the driver
    b.done("all")
    a.done("all")
    b.running.kill()
    b.running.communicate()
    eventually(lambda: a.number("vfile", 3, 0, 20 * MIB) == 801)
    a.done("all")
