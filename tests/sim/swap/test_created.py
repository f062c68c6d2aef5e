"""Memory of cuMemCreate that the program maps by itself moves, too, at the addresses that the program chose."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually
from tests.sim.swap.mapping import (
    FILE,
    MIB,
    READ,
    WRITE,
    all_is_gone,
    fill_device,
    gone,
    mapped,
    moved_out,
    nothing_is_left,
)

Make = "Callable[..., Any]"


def test_one_huge_handle(swapping: Make) -> None:
    """As JAX takes its memory: many chunks behind one handle."""
    s = swapping(200)
    a, b = s.start("a"), s.start("b")
    for program, seed in ((a, 1), (b, 2)):
        mapped(program, 0, 180)
        program.done("fill", 0, seed)
    for _ in range(2):
        for program in (a, b):
            program.done("add", 0, 3)
            program.done("all")
    assert min(s.memory(p)["moved_in"] for p in (a, b)) > 0
    assert s.memory(a)["bytes"] == 180 * MIB
    assert s.most() <= 200
    all_is_gone(s, a, 180)
    eventually(lambda: s.device()["held"] == 2 * CONTEXT + 180 * MIB)
    b.done("all")


def test_small_handles_one_behind_the_other(swapping: Make) -> None:
    """As PyTorch grows a segment: handles of 2 and 20 MiB in one large area, unmapped from its end."""
    s = swapping(200)
    programs = [s.start("a"), s.start("b")]
    sizes = [2, 20, 20, 2, 20, 20, 20, 2, 20, 20, 20]  # 166 MiB
    for program in programs:
        program.done("vreserve", 0, 1024 * MIB)
        at = 0
        for number, mib in enumerate(sizes):
            program.done("vcreate", number, mib * MIB, FILE)
            program.done("vmap", 0, at * MIB, mib * MIB, number)
            program.done("vaccess", 0, at * MIB, mib * MIB, WRITE)
            at += mib
            program.done("vpiece", 0, 0, at * MIB, 0)
        program.done("fill", 0, 7)
        program.done("vaccess", 0, 0, at * MIB, WRITE)  # of all of them, again
    for program in programs * 2:
        program.done("add", 0, 1)
        program.done("all")
    assert s.most() <= 200
    assert s.memory(programs[0])["moved_out"] > 0
    for program in programs:  # the one that is away as well
        program.done("vforget", 0)
        for number in (10, 9, 8):
            program.done("vunmap", 0, sum(sizes[:number]) * MIB, sizes[number] * MIB)
            program.done("vrelease", number)
        program.done("vunmap", 0, 0, sum(sizes[:8]) * MIB)  # several at once
        for number in range(8):
            program.done("vrelease", number)
        program.done("vunreserve", 0)
        nothing_is_left(s, program)
    eventually(lambda: s.device()["held"] == 2 * CONTEXT)


def test_bytes_survive_random_cycles(swapping: Make) -> None:
    s = swapping(160)
    programs = [s.start("a"), s.start("b")]
    dice = random.Random(3)
    held: list[dict[int, int]] = [{}, {}]
    for step in range(60):
        which = step % 2
        program, mine = programs[which], held[which]
        action = dice.random()
        number = dice.randrange(16)
        if action < 0.5 and number not in mine:
            mib = 2 * dice.randrange(1, 40)
            if sum(mine.values()) + mib > 150:
                continue
            mapped(program, number, mib)
            program.done("fill", number, step)
            mine[number] = mib
        elif action < 0.65 and mine:
            number = dice.choice(list(mine))
            gone(program, number, mine.pop(number))
        elif mine:
            program.done("add", dice.choice(list(mine)), dice.randrange(100))
            program.done("all")
    for program in programs:
        program.done("all")
    assert max(s.memory(p)["moved_in"] for p in programs) > 0
    assert s.most() <= 160


def test_a_mapping_goes_and_comes_elsewhere(swapping: Make) -> None:
    """What is in it lives as long as its handle, and moves also while it is mapped nowhere."""
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 80)
    a.done("fill", 0, 5)
    a.done("vunmap", 0, 0, 80 * MIB)
    a.done("vforget", 0)
    b = fill_device(s, 80)
    assert s.away(a) == 80
    a.done("vreserve", 1, 128 * MIB)
    a.done("vmap", 1, 16 * MIB, 80 * MIB, 0)
    a.done("vaccess", 1, 16 * MIB, 80 * MIB, WRITE)
    a.done("vpiece", 1, 16 * MIB, 80 * MIB, 0)
    a.done("all")  # the seed that piece 0 had
    b.done("all")
    assert s.away(a) > 0
    a.done("vunmap", 1, 16 * MIB, 80 * MIB)  # while it is away
    a.done("vmap", 0, 0, 80 * MIB, 0)
    a.done("vaccess", 0, 0, 80 * MIB, WRITE)
    a.done("vpiece", 0, 0, 80 * MIB, 0)
    a.done("all")
    all_is_gone(s, a, 80)


def test_the_handle_may_go_first(swapping: Make) -> None:
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 80)
    a.done("vrelease", 0)
    assert a.number("vrelease", 0) != 0
    a.done("fill", 0, 5)
    b = fill_device(s, 80)
    assert s.memory(a)["bytes"] == 80 * MIB
    a.done("all")
    b.done("all")
    a.done("vforget", 0)
    a.done("vunmap", 0, 0, 80 * MIB)  # while it is away
    nothing_is_left(s, a)
    a.done("vunreserve", 0)
    assert s.most() <= 100


def test_one_handle_at_two_places_and_in_part(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    mapped(a, 0, 140)
    a.done("fill", 0, 5)
    a.done("vreserve", 1, 140 * MIB)
    a.done("vmap", 1, 0, 66 * MIB, 0)  # its beginning: a chunk and a part of the next
    a.done("vaccess", 1, 0, 66 * MIB, READ)
    b = fill_device(s, 180)
    assert s.away(a) > 0
    a.done("vpiece", 1, 0, 66 * MIB, 1)
    assert a.number("peek", 1, 0) == a.number("peek", 0, 0)
    assert a.number("peek", 1, 66 * MIB // 8 - 1) == a.number("peek", 0, 66 * MIB // 8 - 1)
    a.done("poke", 0, 1000, 12345)
    assert a.number("peek", 1, 1000) == 12345
    b.done("all")
    assert s.away(a) > 0
    a.done("vunmap", 0, 0, 140 * MIB)
    assert a.number("peek", 1, 1000) == 12345
    a.done("vrelease", 0)
    assert a.number("peek", 1, 1000) == 12345
    assert s.memory(a)["bytes"] == 140 * MIB
    a.done("vforget", 0)
    a.done("vforget", 1)
    a.done("vunmap", 1, 0, 66 * MIB)
    nothing_is_left(s, a)


def test_access_is_what_was_asked_for(swapping: Make) -> None:
    """Before and after it was away, and while it is."""
    s = swapping(100)
    a = s.start("a")
    a.done("vreserve", 0, 80 * MIB)
    for number in range(4):
        a.done("vcreate", number, 20 * MIB)
        a.done("vmap", 0, 20 * number * MIB, 20 * MIB, number)
    assert a.ask("vgetaccess", 0, 0) == "0 0"
    a.done("vaccess", 0, 0, 60 * MIB, WRITE)  # the last has none
    assert a.number("vaccess", 0, 10 * MIB, 20 * MIB, WRITE) != 0  # of parts of two there is none to give
    assert a.number("vaccess", 0, 60 * MIB, 40 * MIB, WRITE) != 0  # part of it is not mapped
    a.done("vpiece", 0, 0, 60 * MIB, 0)
    a.done("fill", 0, 1)

    def answers() -> list[str]:
        return [a.ask("vgetaccess", 0, at * MIB) for at in (0, 59, 60)] + [a.ask("vpointer", 0, 20 * MIB)]

    before = answers()
    assert before[:3] == ["0 3", "0 3", "0 0"]
    b = fill_device(s, 80)
    assert s.away(a) > 0
    assert answers() == before
    a.done("all")
    assert answers() == before
    a.done("vaccess", 0, 20 * MIB, 20 * MIB, 0)  # none any more
    b.done("all")
    a.done("spin", 1)
    assert a.ask("vgetaccess", 0, 20 * MIB) == "0 0"
    a.tell("peek", 0, 21 * MIB // 8)
    _, words = a.running.communicate(timeout=60)
    assert "no memory is mapped" in words


def test_queries_answer_as_for_memory_that_stays(swapping: Make) -> None:
    def answers(a: Any) -> list[str]:
        return [
            a.ask("vproperties", 0),
            a.ask("attributes", 0, 30 * MIB),
            a.ask("attributes", 2, MIB),
            a.ask("vpointer", 0, 5),
            a.ask("vgetaccess", 0, 7),
            a.ask("ipc", 0),
            a.ask("vpointer", 1, MIB),
        ]

    def make(a: Any) -> None:
        mapped(a, 0, 80)
        mapped(a, 1, 4, types=FILE)
        a.done("vreserve", 2, 64 * MIB)  # larger than what is mapped
        a.done("vcreate", 2, 4 * MIB)
        a.done("vmap", 2, 8 * MIB, 4 * MIB, 2)
        a.done("vpiece", 2, 8 * MIB, 4 * MIB, 2)

    plain = swapping(None).start("a")
    make(plain)
    expected = answers(plain)
    plain.running.kill()
    s = swapping(100)
    a = s.start("a")
    make(a)
    a.done("fill", 0, 1)
    assert answers(a) == expected
    fill_device(s, 80)
    assert s.away(a) > 0
    assert answers(a) == expected
    a.done("vretain", 0, 70 * MIB, 9)
    assert a.number("vsame", 0, 9) == 1
    a.done("vrelease", 9)
    a.done("check", 0)


def test_odd_requests_are_refused_as_the_driver_does(swapping: Make) -> None:
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 20)
    assert a.number("vcreate", 1, MIB) == 1
    assert a.number("vmap", 0, 0, 20 * MIB, 0) == 1  # there is something
    a.done("vreserve", 1, 64 * MIB)
    assert a.number("vmap", 1, 0, 22 * MIB, 0) == 1  # more than it has
    assert a.number("vmap", 1, 60 * MIB, 20 * MIB, 0) == 1  # beyond the addresses
    assert a.number("vmap", 1, 0, 0, 0) == 1
    assert a.number("vunmap", 0, 0, 10 * MIB) == 1
    assert a.number("vunreserve", 0) == 1
    a.done("fill", 0, 1)
    b = fill_device(s, 90)
    assert s.away(a) == 20
    assert a.number("vunreserve", 0) == 1  # also while it is away
    assert a.number("vunmap", 0, 0, 10 * MIB) == 1
    assert a.number("free", 0) == 1
    a.done("all")
    b.done("all")
    gone(a, 0, 20)
    a.done("vunreserve", 1)
    nothing_is_left(s, a)


def test_more_than_may_be_had(swapping: Make) -> None:
    """It is refused when it is made, where programs expect it."""
    s = swapping(100)
    s.server.set_group("g", memory=CONTEXT + 30 * MIB)
    a, g = s.start("a"), s.start("g")
    assert a.number("vcreate", 0, 102 * MIB) == 2
    mapped(a, 1, 60)
    assert a.number("vcreate", 0, 42 * MIB) == 2
    mapped(a, 2, 40)
    assert s.memory(a)["bytes"] == 100 * MIB
    assert g.number("vcreate", 0, 32 * MIB) == 2
    mapped(g, 0, 30)
    assert s.served.used("g") == CONTEXT + 30 * MIB
    gone(g, 0, 30)
    mapped(g, 0, 30)


def test_the_context_goes_and_the_memory_stays(swapping: Make) -> None:
    """It belongs to none, and another copies it."""
    s = swapping(100 + CONTEXT // MIB)
    a = s.start("a")
    a.done("context", 1)
    mapped(a, 0, 80)
    a.done("fill", 0, 6)
    b = fill_device(s, 60)
    assert s.away(a) > 0
    a.done("context", 2)
    s.capacity(100)
    a.done("all")
    b.done("all")
    assert s.away(a) > 0
    a.done("all")
    all_is_gone(s, a, 80)


def test_the_only_context_is_reset(swapping: Make) -> None:
    s = swapping(100)
    a, b = moved_out(s, 80, seed=6, beside=60)
    a.done("destroy")
    assert s.memory(a)["bytes"] == 80 * MIB
    a.done("device", 0)
    a.done("all")
    b.done("all")
    a.done("all")
    all_is_gone(s, a, 80)


def test_a_forked_child_has_none_of_it(swapping: Make) -> None:
    s = swapping(100)
    a, _ = moved_out(s, 80, seed=6, beside=60)
    a.done("vfork", 0)
    a.done("all")
    assert s.memory(a)["bytes"] == 80 * MIB


def test_a_graph_and_stream_words_wait_for_it(swapping: Make) -> None:
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 80)
    a.done("fill", 0, 6)
    a.done("capture")
    a.done("add", 0, 7)
    a.done("endcapture")
    b = fill_device(s, 60)
    assert s.away(a) > 0
    a.done("replay", 0, 0)
    a.done("all")
    b.done("all")
    a.done("write", 0, 5)
    a.done("sync")
    assert a.number("peek", 0, 0) & 0xFFFFFFFF == 5


def test_a_segment_that_grows_in_a_capture(swapping: Make) -> None:
    """Nobody waits there: the program leaves for the other once the capture is over."""
    s = swapping(60)
    a, b = s.start("a"), s.start("b")
    a.done("vreserve", 0, 64 * MIB)
    for number in range(2):
        a.done("vcreate", number, 20 * MIB)
        a.done("vmap", 0, 20 * number * MIB, 20 * MIB, number)
    a.done("vaccess", 0, 0, 40 * MIB, WRITE)
    a.done("capture", 2)
    b.done("alloc", 0, 50 * MIB)
    b.tell("fill", 0, 1)
    eventually(lambda: s.memory(a)["allowed"] < 40 * MIB)
    a.done("vcreate", 2, 10 * MIB)  # there is no place for it now
    a.done("vmap", 0, 40 * MIB, 10 * MIB, 2)
    a.done("vaccess", 0, 0, 50 * MIB, WRITE)
    a.done("vpiece", 0, 0, 50 * MIB, 0)
    a.done("add", 0, 1)
    a.done("endcapture")
    assert b.answer() == "0"
    a.done("fill", 0, 3)
    a.done("replay", 0, 1)
    a.done("all")
    b.done("all")
    assert s.most() <= 60


def test_a_resident_limit_that_changes(swapping: Make) -> None:
    s = swapping(None)
    s.server.set_group("g", resident=200 * MIB + 2 * CONTEXT)
    a, b = s.start("g"), s.start("g")
    for program in (a, b):
        mapped(program, 0, 80)
        program.done("fill", 0, 3)
    assert s.away(a) == s.away(b) == 0
    s.server.set_group("g", resident=100 * MIB + 2 * CONTEXT)
    eventually(lambda: s.away(a) + s.away(b) >= 60)
    for program in (a, b, a, b):
        program.done("add", 0, 1)
        program.done("all")
    s.server.set_group("g", resident=200 * MIB + 2 * CONTEXT)
    eventually(lambda: s.away(a) + s.away(b) == 0)
    a.done("all")


def test_dead_bytes_are_not_copied(swapping: Make) -> None:
    s = swapping(100)
    a = s.start("a")
    mapped(a, 0, 80)
    a.done("fill", 0, 1)
    a.done("sync")
    assert a.number("ticket") == 1
    assert a.number("dead", 0, 4 * MIB, 76 * MIB) == 76 * MIB
    fill_device(s, 100)
    assert s.away(a) == 80
    assert s.memory(a)["moved_out"] == 4 * MIB
    a.done("words", 0, 0, 4 * MIB // 8)


FAULTS = [
    f"{function}:{call}={code}"
    for function, calls, code in [
        ("cuMemCreate", (1, 2, 3, 4, 5, 6), 2),
        ("cuMemCreate", (1, 3, 5, 6), 801),
        ("cuMemAddressReserve", (1, 2, 3), 2),
        ("cuMemMap", (1, 2, 3, 4, 5, 8, 9, 10, 11, 12), 1),
        ("cuMemSetAccess", (1, 2, 3, 4, 8, 9, 10, 11, 12), 1),
        ("cuMemUnmap", (1, 2, 3, 4, 5, 6), 1),
        ("cuMemRelease", (1, 2, 3), 1),
        ("cuMemAddressFree", (1, 2, 3), 1),
        ("cuPointerGetAttribute", (1,), 1),
        ("cuMemcpyDtoHAsync", (1, 2), 1),
        ("cuMemcpyHtoDAsync", (1, 2), 1),
        ("cuCtxSynchronize", (1,), 1),
    ]
    for call in calls
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_driver_that_refuses_once(swapping: Make, fault: str) -> None:
    """Wherever it refuses: the bytes are right, the books are the machine's, and the others are served."""
    s = swapping(20)
    a, b = s.start("a", GEMLET_SIM_FAULTS=fault), s.start("b")

    def again(*words: object) -> None:
        if a.number(*words) != 0:
            a.done(*words)

    for i in range(4):
        again("vreserve", i, 4 * MIB)
        again("vcreate", i, 4 * MIB, FILE)
        again("vmap", i, 0, 4 * MIB, i)
        again("vaccess", i, 0, 4 * MIB, WRITE)
        a.done("vpiece", i, 0, 4 * MIB, i)
        a.done("fill", i, i)
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 9)
    for program in (a, b, a, b):
        program.done("all")
    a.done("spin", 10)
    assert s.memory(a)["moved_in"] > 0
    assert s.most() <= 20
    assert s.memory(a)["bytes"] == 16 * MIB
    for i in range(4):
        a.done("vforget", i)
        if i % 2:
            again("vunmap", i, 0, 4 * MIB)
            again("vrelease", i)
        else:
            again("vrelease", i)
            again("vunmap", i, 0, 4 * MIB)
        again("vunreserve", i)
    nothing_is_left(s, a)
    used = {g["name"]: g["memory_used"] for g in s.device()["groups"]}
    assert used == {"a": CONTEXT, "b": CONTEXT + 16 * MIB}
