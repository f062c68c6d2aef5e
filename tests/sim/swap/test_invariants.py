"""What must hold whatever happens: bytes, addresses, books, captures, queries."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually

MIB = 1 << 20
Make = "Callable[..., Any]"


def test_bytes_survive_random_cycles(swapping: Make) -> None:
    """Odd sizes, frees and allocations between turns, frees of memory that is away; and never more than the
    capacity."""
    s = swapping(200)
    programs = [s.start("a"), s.start("b")]
    dice = random.Random(5)
    pieces: list[dict[int, int]] = [{}, {}]
    addresses: list[dict[int, int]] = [{}, {}]
    for step in range(60):
        which = step % 2 if dice.random() < 0.7 else dice.randrange(2)
        program, held, where = programs[which], pieces[which], addresses[which]
        action = dice.random()
        if action < 0.45 or not held:
            number = dice.randrange(1000)
            size = dice.choice([dice.randrange(1, 2 * MIB), dice.randrange(2 * MIB, 70 * MIB) | 1])
            if number in held or sum(held.values()) + size > 170 * MIB:
                continue
            program.done("alloc", number, size)
            program.done("fill", number, step)
            held[number] = size
            where[number] = program.number("address", number)
        elif action < 0.6:
            number = dice.choice(list(held))
            program.done("free", number)
            del held[number], where[number]
        elif action < 0.8:
            program.done("add", dice.choice(list(held)), dice.randrange(100))
        else:
            program.done("all")
    for program, held, where in zip(programs, pieces, addresses, strict=True):
        program.done("all")
        assert {number: program.number("address", number) for number in held} == where
    assert max(s.memory(p)["moved_in"] for p in programs) > 0
    assert s.most() <= 200


def test_hundreds_of_cycles_leave_nothing_behind(swapping: Make) -> None:
    """Chunks of 2 MiB, so that a cycle is quick: handles, addresses, host places and descriptors."""
    s = swapping(20, epoch_min=1, max_wait=1)
    programs = [s.start("a"), s.start("b")]
    for program in programs:
        program.done("alloc", 0, 12 * MIB)
        program.done("fill", 0, 3)

    def cycle() -> None:
        for program in programs:
            program.done("add", 0, 1)

    def descriptors(program: Any) -> tuple[int, int]:
        folder = Path(f"/proc/{program.running.pid}")
        maps = sum("gemlet" in line for line in (folder / "maps").read_text().splitlines())
        return len(list((folder / "fd").iterdir())), maps

    for _ in range(20):
        cycle()
    before = [descriptors(p) for p in programs]
    moved = s.memory(programs[0])["moved_out"]
    for _ in range(150):
        cycle()
    # Which chunks are mapped where differs by a few.
    for program, (files, maps) in zip(programs, before, strict=True):
        files_now, maps_now = descriptors(program)
        assert files_now <= files
        assert maps_now <= maps + 8
        program.done("all")
    assert s.memory(programs[0])["moved_out"] > moved + 120 * MIB
    for program in programs:
        program.done("free", 0)
    eventually(lambda: s.device()["held"] == 2 * CONTEXT)
    assert s.most() <= 20


FAULTS = [
    f"{function}:{call}={code}"
    for function, calls, code in [
        ("cuMemCreate", (1, 2, 3, 4, 5, 6), 2),
        ("cuMemMap", (1, 2, 3, 5), 1),
        ("cuMemSetAccess", (1, 2, 3, 5), 1),
        ("cuMemAddressReserve", (1,), 2),
        ("cuMemUnmap", (1, 2, 3), 1),
        ("cuMemRelease", (1, 2, 3), 1),
        ("cuMemcpyDtoHAsync", (1, 2, 3), 1),
        ("cuMemcpyHtoDAsync", (1, 2, 3), 1),
        ("cuEventRecord", (1, 2, 3, 4), 1),
        ("cuEventSynchronize", (1, 2, 3, 4), 1),
        ("cuCtxSynchronize", (1, 2), 1),
        ("cuStreamCreate", (3, 4), 2),
        ("cuStreamSynchronize", (5,), 1),
        ("cuModuleLoadData", (2,), 218),
        ("cuModuleGetFunction", (3,), 500),
        ("cuMemHostGetDevicePointer", (1,), 1),
        ("cuLaunchKernel", (1, 2, 3, 4), 1),
        ("cuEventCreate", (1, 2, 3, 4), 2),
        ("cuMemHostRegister", (1, 2), 2),
    ]
    for call in calls
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_driver_that_refuses_once(swapping: Make, fault: str) -> None:
    """Wherever it refuses: the bytes are right, the books are the machine's, and the others are served."""
    s = swapping(20)
    a, b = s.start("a", GEMLET_SIM_FAULTS=fault), s.start("b")
    held: dict[int, int] = {}
    for i in range(4):
        # The program may see the driver's own answer to its own call; then it tries again.
        if a.number("alloc", i, 4 * MIB) != 0:
            a.done("alloc", i, 4 * MIB)
        a.done("fill", i, i)
        held[i] = 4 * MIB
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 9)
    for program in (a, b, a, b):
        program.done("all")
    a.done("spin", 10)
    assert s.memory(a)["moved_in"] > 0
    assert s.most() <= 20
    assert s.memory(a)["bytes"] == 16 * MIB
    for i in held:
        if a.number("free", i) != 0:
            a.done("free", i)
    eventually(lambda: s.memory(a)["bytes"] == s.memory(a)["resident"] == 0)
    used = {g["name"]: g["memory_used"] for g in s.device()["groups"]}
    assert used == {"a": CONTEXT, "b": CONTEXT + 16 * MIB}


@pytest.mark.parametrize("function", ["cuMemUnmap", "cuMemcpyDtoHAsync", "cuMemRelease"])
def test_a_driver_that_never_lets_go(swapping: Make, function: str) -> None:
    """The program keeps what it has; another that fits beside it is served."""
    s = swapping(40)
    a = s.start("a", GEMLET_SIM_FAULTS=f"{function}:*=1")
    a.done("alloc", 0, 32 * MIB)
    a.done("fill", 0, 1)
    s.capacity(40 + CONTEXT // MIB)
    b, c = s.start("b"), s.start("c")
    b.done("alloc", 0, 32 * MIB)  # it has it, and waits for the room
    b.tell("fill", 0, 2)
    c.done("alloc", 0, 2 * MIB)
    c.done("fill", 0, 3)
    c.done("all")
    assert s.away(b) > 0
    assert s.most() <= 40 + CONTEXT // MIB


def test_a_dead_context_shows_its_error(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a", GEMLET_SIM_FAULTS="cuCtxSynchronize:1=719!"), s.start("b")
    a.done("alloc", 0, 16 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 16 * MIB)
    b.tell("spin", 10)
    eventually(lambda: a.ask("spin", 10) == "719")
    a.running.kill()
    assert b.answer() == "0"


def test_a_capture_defers_the_move(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 16 * MIB)
    a.done("fill", 0, 1)
    a.done("capture")
    a.done("add", 0, 7)
    b.done("alloc", 0, 16 * MIB)
    b.tell("fill", 0, 1)
    with pytest.raises(AssertionError):
        eventually(lambda: s.away(a) > 0, 1.0)
    a.done("endcapture")
    assert b.answer() == "0"
    assert s.away(a) > 0
    # The graph was made for addresses; they hold again when it runs. The kernel was counted when it was captured.
    a.done("replay", 0, 0)
    a.done("all")


@pytest.mark.parametrize("mode", [1, 2], ids=["thread-local", "relaxed"])
def test_memory_is_freed_beside_a_capture(swapping: Make, mode: int) -> None:
    """As the driver allows it, to other threads in every one of these modes and to the same in the relaxed one."""
    a = swapping(200).start("a")
    a.done("alloc", 0, 16 * MIB)
    a.done("alloc", 1, 1000)
    a.done("alloc", 2, 16 * MIB)
    a.done("fill", 2, 1)
    a.done("capture", mode)
    a.done("freebeside", 0)
    a.done("freebeside", 1)
    a.done("add", 2, 7)
    a.done("endcapture")
    a.done("replay", 2, 0)
    a.done("all")


def test_a_capture_that_ended_with_its_context_defers_nothing(swapping: Make) -> None:
    s = swapping(20)
    a = s.start("a")
    a.done("abandon")
    b = s.start("b")
    a.done("alloc", 0, 16 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 1)
    assert s.away(a) > 0


def test_queries_answer_as_for_a_plain_allocation(swapping: Make) -> None:
    plain = swapping(None)
    size = 5 * MIB + 12345
    p = plain.start("a")
    p.done("alloc", 0, size)
    p.done("alloc", 1, 1000)
    expected = [p.ask("attributes", 0, 4096), p.ask("attributes", 1, 8)]
    handle = p.ask("retain", 0)
    p.running.kill()
    moving = swapping(200)
    a = moving.start("a")
    a.done("alloc", 0, size)
    a.done("alloc", 1, 1000)
    a.done("fill", 0, 1)

    def answers() -> list[str]:
        return [a.ask("attributes", 0, 4096), a.ask("attributes", 1, 8)]

    def without_rounding(lines: list[str]) -> list[list[str]]:
        # The size of a small piece is whatever the allocator rounds to.
        return [line.split() if i == 0 else [w for j, w in enumerate(line.split()) if j not in {8, 10}]
                for i, line in enumerate(lines)]  # fmt: skip

    assert without_rounding(answers()) == without_rounding(expected)
    assert a.ask("retain", 0) == handle
    b = moving.start("b")
    b.done("alloc", 0, 198 * MIB)
    b.done("fill", 0, 1)
    assert moving.away(a) > 0
    assert without_rounding(answers()) == without_rounding(expected)
    assert a.ask("ipc", 0) == "801"  # not supported


def test_pitched_memory_moves_too(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    assert a.ask("pitch", 0, 5000, 3000) == "0 5120"
    a.done("fill", 0, 4)
    b.done("alloc", 0, 18 * MIB)
    b.done("fill", 0, 4)
    assert s.away(a) > 0
    a.done("all")


def test_stream_words_wait_for_the_memory(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 16 * MIB)
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 1)
    assert s.away(a) > 0
    a.done("write", 0, 5)
    a.done("sync")


def test_memory_that_cannot_move_makes_room_for_itself(swapping: Make) -> None:
    s = swapping(100)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 60 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 30 * MIB)
    b.done("fill", 0, 1)
    assert b.number("array", 0, 20 * MIB) == 0
    assert s.most() <= 100
    assert b.number("array", 0, 80 * MIB) == 2  # with the first it would never fit beside the 60
    a.done("all")
    b.done("all")
    assert s.most() <= 100


def test_admission(swapping: Make) -> None:
    s = swapping(200, host=100)
    a, b = s.start("a"), s.start("b")
    assert a.number("alloc", 0, 202 * MIB) == 2
    a.done("alloc", 0, 150 * MIB)
    b.done("alloc", 0, 98 * MIB)  # 48 of each may have to go
    assert b.number("alloc", 1, 8 * MIB) == 2
    free, _ = map(int, a.ask("info").split())
    assert free == 50 * MIB
    a.running.kill()
    _, words = a.running.communicate(timeout=60)
    assert "no more than" in words
    assert "capacity" in words


def test_a_group_with_a_resident_limit(swapping: Make) -> None:
    s = swapping(None)
    s.server.set_group("g", resident=20 * MIB + 2 * CONTEXT, memory=64 * MIB + 2 * CONTEXT)
    a, b, other = s.start("g"), s.start("g"), s.start("h")
    for program in (a, b):
        program.done("alloc", 0, 16 * MIB)
        program.done("fill", 0, 1)
    other.done("alloc", 0, 900 * MIB)
    assert s.away(a) > 0
    assert a.number("alloc", 1, 8 * MIB) == 2
    assert int(a.ask("info").split()[1]) == 64 * MIB + 2 * CONTEXT
    a.done("all")
    b.done("all")


def test_the_context_may_go(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 16 * MIB)
    a.done("fill", 0, 1)
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 1)
    a.done("spin", 10)
    a.done("destroy")
    eventually(lambda: s.memory(a)["bytes"] == s.memory(a)["resident"] == 0)
    b.done("all")
