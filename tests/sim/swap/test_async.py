"""Stream-ordered memory moves like any other; what is freed is used again in the order of streams only."""

from __future__ import annotations

import time

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, eventually

MIB = 1 << 20
HW_DECOMPRESS = 2  # CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS
Make = "Callable[..., Any]"


@pytest.mark.parametrize("pool", [(), ("default",), ("pool", 0)])
def test_stream_ordered_memory_moves(swapping: Make, pool: tuple[object, ...]) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    for program in (a, b):
        if pool:
            program.done(*pool)
        program.done("allocasync", 0, 12 * MIB)
        program.done("allocasync", 1, 5000)
        program.done("sync")
        for piece in (0, 1):
            program.done("fill", piece, 3)
    addresses = [a.number("address", 0), a.number("address", 1)]
    for _ in range(2):
        for program in (a, b):
            program.done("add", 0, 5)
            program.done("all")
    assert [a.number("address", 0), a.number("address", 1)] == addresses
    assert s.memory(a)["bytes"] == 14 * MIB
    assert s.memory(a)["moved_in"] > 0
    assert s.most() <= 20
    for program in (a, b):
        program.done("freeasync", 0)
        program.done("free", 1)  # also with the plain call, as the driver allows


def test_a_freed_block_is_used_again_on_its_stream(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("allocasync", 0, 8 * MIB)
    address = a.number("address", 0)
    for _ in range(20):
        a.done("launch", 20_000)  # it is still in use when it is freed
        a.done("freeasync", 0)
        a.done("allocasync", 0, 8 * MIB)
        assert a.number("address", 0) == address
    assert s.memory(a)["bytes"] == 8 * MIB


def test_another_stream_gets_it_only_when_the_free_is_over(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("allocasync", 0, 8 * MIB)
    address = a.number("address", 0)
    a.done("launch", 400_000)
    a.done("freeasync", 0)
    a.done("allocasync", 1, 8 * MIB, 1)
    assert a.number("address", 1) != address
    a.done("sync")
    a.done("allocasync", 2, 8 * MIB, 1)
    assert a.number("address", 2) == address


def test_freed_blocks_are_dead(swapping: Make) -> None:
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    for piece in (0, 1):
        a.done("allocasync", piece, 8 * MIB)
        a.done("sync")
        a.done("fill", piece, piece)
    a.done("freeasync", 1)
    b.done("alloc", 0, 20 * MIB)
    b.done("fill", 0, 2)
    assert s.memory(a)["moved_out"] == 8 * MIB
    a.done("allocasync", 1, 8 * MIB)
    a.done("fill", 1, 7)
    a.done("all")
    b.done("all")


def test_neither_waits_for_the_device(swapping: Make) -> None:
    """What runs may wait for something that the calling thread does next."""
    s = swapping(200)
    a = s.start("a")
    a.done("allocasync", 0, 8 * MIB)
    a.done("allocasync", 1, 8 * MIB)
    a.done("freeasync", 0)
    a.done("sync")
    time.sleep(0.2)  # what was freed lies unused for long enough to be given back
    a.done("launch", 6_000_000)
    a.done("allocasync", 2, 4 * MIB, 1)
    a.done("freeasync", 1)
    assert a.number("query") == 600  # CUDA_ERROR_NOT_READY: it still runs
    a.done("sync")
    a.done("allocasync", 3, 2 * MIB)
    eventually(lambda: s.memory(a)["bytes"] == 6 * MIB)


def test_a_thread_that_ended_leaves_nobody_its_order(swapping: Make) -> None:
    """A later thread may look like it in every way but that its default stream is another one."""
    s = swapping(200)
    a = s.start("a")
    a.done("allocasync", 0, 8 * MIB)
    a.done("sync")
    a.done("threads", 0)


def test_a_context_goes_in_whose_order_a_block_was_freed(swapping: Make) -> None:
    s = swapping(1000)
    a = s.start("a")
    for piece in (0, 1):
        a.done("allocasync", piece, 8 * MIB)
    a.done("context", 1)
    a.done("freeasync", 0, 2)
    a.done("freeasync", 1, 2)
    a.done("context", 2)
    a.done("allocasync", 2, 8 * MIB)  # one of them again
    time.sleep(0.2)
    a.done("allocasync", 3, 4 * MIB)
    eventually(lambda: s.memory(a)["bytes"] == 12 * MIB)


def test_what_is_put_aside_makes_room(swapping: Make) -> None:
    s = swapping(20)
    a, _ = s.start("a"), s.start("b")
    a.done("allocasync", 0, 16 * MIB)
    a.done("launch", 50_000)
    a.done("freeasync", 0)
    a.done("alloc", 1, 18 * MIB)
    a.done("fill", 1, 1)
    a.done("all")
    eventually(lambda: s.memory(a)["bytes"] == 18 * MIB)
    a.done("freeasync", 1)
    assert s.most() <= 20


@pytest.mark.parametrize("size", [8 * MIB, 5000])
def test_plain_memory_that_a_stream_frees_goes_without_another_call(swapping: Make, size: int) -> None:
    """It is of no pool, which could hand it out again."""
    s = swapping(200)
    a = s.start("a")
    a.done("alloc", 0, size)
    a.done("launch", 400_000)
    a.done("freeasync", 0)
    eventually(lambda: s.memory(a)["bytes"] == 0 and s.served.used("a") == CONTEXT)


def test_a_pool_says_what_it_has(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("pool", 0)
    a.done("allocasync", 0, 8 * MIB)
    a.done("allocasync", 1, 4 * MIB)
    assert a.ask("poolbytes") == f"{12 * MIB} {12 * MIB}"
    a.done("freeasync", 0)
    assert a.ask("poolbytes") == f"{4 * MIB} {12 * MIB}"
    a.done("sync")
    a.done("trim", 0)
    assert a.ask("poolbytes") == f"{4 * MIB} {4 * MIB}"
    eventually(lambda: s.memory(a)["bytes"] == 4 * MIB)


@pytest.mark.parametrize("wishes", [(64 * MIB, 0), (0, HW_DECOMPRESS)])
def test_a_pool_with_wishes_of_its_own_stays_where_it_is(swapping: Make, wishes: tuple[int, int]) -> None:
    s = swapping(200)
    a = s.start("a")
    a.done("pool", *wishes)
    a.done("allocasync", 0, 8 * MIB)
    assert s.memory(a)["bytes"] == 0
    eventually(lambda: s.device()["held"] >= CONTEXT + 8 * MIB)
    a.done("sync")
    a.done("fill", 0, 1)
    a.done("all")


def test_a_free_behind_a_full_queue_holds_up_nobody_else(swapping: Make) -> None:
    """The queue goes on once another thread has done what it does."""
    s = swapping(200)
    a = s.start("a")
    a.done("allocasync", 0, 8 * MIB)
    a.done("allocasync", 1, 8 * MIB)
    a.done("sync")
    a.done("hold")
    a.done("brim", 1)
    assert a.ask("address", 0) != "0"
    a.ask("attributes", 0, 8)
    a.done("alloc", 2, 4 * MIB)
    a.done("allocasync", 3, 4 * MIB)
    a.done("release", 1)


def test_a_pool_with_memory_that_may_be_away_is_not_given_to_another_device(swapping: Make) -> None:
    s = swapping(200)
    a = s.start("a", GEMLET_SIM_DEVICES="2")
    a.done("default")
    a.done("allocasync", 0, 8 * MIB)
    a.done("access", 0)  # its own device has it anyway
    assert a.number("access", 1) == 801
    a.running.kill()
    assert "cannot be shared with other devices" in a.running.communicate(timeout=60)[1]
