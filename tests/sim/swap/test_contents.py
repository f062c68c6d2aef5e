"""Which bytes are copied: not those that are on the host as they are, and not those that the program declared dead."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

MIB = 1 << 20
PART = 512 << 10  # what one fingerprint is of
Make = "Callable[..., Any]"


def two_programs(s: Any, mib: int = 20) -> tuple[Any, Any]:
    """Both have been away once, so the host has had all of them; the second is there."""
    a, b = s.start("a"), s.start("b")
    for program, seed in ((a, 1), (b, 2)):
        program.done("alloc", 0, mib * MIB)
        program.done("fill", 0, seed)
    a.done("spin", 10)
    b.done("spin", 10)
    return a, b


def test_what_did_not_change_is_not_copied_again(swapping: Make) -> None:
    s = swapping(80)
    a, b = two_programs(s, 70)
    before = [s.memory(p)["moved_out"] for p in (a, b)]
    for _ in range(3):
        a.done("spin", 10)
        b.done("spin", 10)
    assert [s.memory(p)["moved_out"] for p in (a, b)] == before
    assert s.memory(a)["dropped"] >= 3 * 60 * MIB
    for program in (a, b):
        program.done("all")
    assert s.most() <= 80


def test_one_context_of_several_goes(swapping: Make) -> None:
    """The kernel is of the context that the copies are of, and does not go with another."""
    s = swapping(600)
    a, b = s.start("a"), s.start("b")
    b.done("alloc", 0, 560 * MIB)
    b.done("fill", 0, 1)
    a.done("alloc", 0, 80 * MIB)  # there is no room, so it comes in before anything of this program goes
    a.done("fill", 0, 2)
    a.done("free", 0)
    s.capacity(1100)
    a.done("context", 1)
    a.done("alloc", 1, 60 * MIB)
    a.done("fill", 1, 3)
    b.done("all")
    a.done("check", 1)
    a.done("context", 2)
    s.capacity(600)
    a.done("alloc", 0, 60 * MIB)
    a.done("fill", 0, 4)
    for _ in range(5):
        b.done("all")
        a.done("check", 0)
    assert s.memory(a)["dropped"] >= 3 * 60 * MIB


@pytest.mark.parametrize("word", [0, PART // 8 - 1, 20 * MIB // 8 - 1])
def test_one_word_that_changed_is_copied(swapping: Make, word: int) -> None:
    s = swapping(20)
    a, b = two_programs(s)
    before = s.memory(a)["moved_out"]
    a.done("poke", 0, word, 12345)
    b.done("spin", 10)
    assert s.memory(a)["moved_out"] == before + PART
    assert a.number("peek", 0, word) == 12345
    a.done("words", 0, word + 1, min(word + 1000, 20 * MIB // 8))
    a.done("words", 0, max(0, word - 1000), word)


def test_words_that_changed_places_are_copied(swapping: Make) -> None:
    """A sum that did not know their places would be the same."""
    s = swapping(20)
    a, b = two_programs(s)
    before = s.memory(a)["moved_out"]
    first, second = a.number("peek", 0, 100), a.number("peek", 0, 101)
    a.done("poke", 0, 100, second)
    a.done("poke", 0, 101, first)
    b.done("spin", 10)
    assert s.memory(a)["moved_out"] == before + PART
    assert (a.number("peek", 0, 100), a.number("peek", 0, 101)) == (second, first)


def test_without_the_kernel_everything_is_copied(swapping: Make) -> None:
    s = swapping(20)
    # The first is the program's own.
    faults = {"GEMLET_SIM_FAULTS": "cuModuleLoadData:2=218"}
    a, b = s.start("a", **faults), s.start("b")
    for program in (a, b):
        program.done("alloc", 0, 20 * MIB)
        program.done("fill", 0, 1)
    for _ in range(2):
        a.done("spin", 10)
        b.done("spin", 10)
    assert s.memory(a)["moved_out"] == 3 * 20 * MIB
    a.done("all")


def test_dead_bytes_are_not_copied(swapping: Make) -> None:
    s = swapping(74)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 72 * MIB)
    a.done("fill", 0, 1)
    a.done("sync")
    assert a.number("ticket") == 1
    assert a.number("dead", 0, 0, 64 * MIB) == 64 * MIB  # a whole chunk
    assert a.number("dead", 0, 66 * MIB, 4 * MIB) == 4 * MIB
    b.done("alloc", 0, 72 * MIB)
    b.done("fill", 0, 2)
    assert s.memory(a)["moved_out"] == 4 * MIB
    assert s.memory(a)["dropped"] == 68 * MIB
    a.done("words", 0, 64 * MIB // 8, 66 * MIB // 8)
    a.done("words", 0, 70 * MIB // 8, 72 * MIB // 8)
    assert s.memory(a)["moved_in"] == 4 * MIB
    # All of it counts again once something was submitted.
    a.done("fill", 0, 3)
    b.done("all")
    a.done("all")


def test_dead_ranges_end_where_they_were_declared_to(swapping: Make) -> None:
    """Ends anywhere, overlaps, small and large; all bytes beside them are as they were, cycle after cycle."""
    s = swapping(10)
    dice = random.Random(11)
    a, b = s.start("a"), s.start("b")
    words = 8 * MIB // 8
    a.done("alloc", 0, 8 * MIB)
    b.done("alloc", 0, 8 * MIB)
    b.done("fill", 0, 2)
    for seed in range(8):
        a.done("fill", 0, seed)
        live = {0, words}
        ranges = []
        assert a.number("ticket") == 1
        for _ in range(dice.choice([1, 5, 40])):
            begin = dice.randrange(words)
            end = min(words, begin + dice.choice([1, 100, 10_000, 300_000, 600_000]))
            assert a.number("dead", 0, begin * 8, (end - begin) * 8) == (end - begin) * 8
            ranges.append((begin, end))
            live |= {begin, end}
        before = s.memory(a)["moved_out"]
        b.done("all")
        assert s.memory(a)["moved_out"] <= before + 8 * MIB
        edges = sorted(live)
        for begin, end in itertools.pairwise(edges):
            if not any(first <= begin < last for first, last in ranges):
                a.done("words", 0, begin, end)


@pytest.mark.parametrize("act", [("spin", 10), ("poke", 0, 5, 5), ("write", 0, 5), ("live",)])
def test_a_declaration_lapses(swapping: Make, act: tuple[object, ...]) -> None:
    """A kernel, a copy, a word in stream order: each ends it, so that what is allocated again is not lost."""
    s = swapping(20)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 20 * MIB)
    a.done("fill", 0, 1)
    assert a.number("ticket") == 1
    assert a.number("dead", 0, 0, 18 * MIB) == 18 * MIB
    a.done(*act)
    assert a.number("dead", 0, 0, 18 * MIB) == -1
    b.done("alloc", 0, 16 * MIB)
    b.done("fill", 0, 2)
    assert s.memory(a)["dropped"] == 0
    a.done("words", 0, 10, 20 * MIB // 8)


def test_a_ticket_is_void_after_a_submission(swapping: Make) -> None:
    s = swapping(80)
    a = s.start("a")
    a.done("alloc", 0, 8 * MIB)
    assert a.number("iteration") == 0
    assert a.number("dead", 0, 0, 8 * MIB) == -1  # there is none yet
    a.number("ticket")
    a.done("spin", 10)
    assert a.number("dead", 0, 0, 8 * MIB) == -1
    a.number("ticket")
    assert a.number("dead", 0, 0, 8 * MIB) == 8 * MIB
    assert a.number("dead", 0, 8 * MIB, 8 * MIB) == 0  # not its memory


def test_a_program_that_tells_of_its_iterations_leaves_at_their_end(swapping: Make) -> None:
    """Most of it is scratch: hardly more than the rest is ever copied."""
    s = swapping(50, max_wait=30_000_000_000)  # longer than any iteration, also on a busy machine
    programs = s.start("a"), s.start("b")
    for program in programs:
        program.done("alloc", 0, 4 * MIB)
        program.done("alloc", 1, 40 * MIB)
        program.done("fill", 0, 1)
        assert program.number("train", 0.2) < 1000  # so that it is known how long an iteration takes

    def total(what: str) -> int:
        return sum(int(s.memory(p)[what]) for p in programs)

    copied, dropped = total("moved_out"), total("dropped")
    for _ in range(6):
        for program in programs:
            program.tell("train", 2)
        assert max(int(p.answer()) for p in programs) < 10_000
        if total("dropped") - dropped > 200 * MIB:
            break
    assert (total("moved_out") - copied) * 3 <= total("dropped") - dropped
    for program in programs:
        program.done("check", 0)
    assert s.most() <= 50


def test_a_process_without_movable_memory(swapping: Make) -> None:
    s = swapping(None)
    a = s.start("a")
    a.done("alloc", 0, 8 * MIB)
    assert a.number("iteration") == 0
    assert a.number("ticket") == 1
    assert a.number("dead", 0, 0, 8 * MIB) == 0
