"""The host's side: how much memory programs keep there, and what happens where the system has none."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

from tests.sim.robustness.hurt_machine import CONTEXT, eventually

MIB = 1 << 20
Make = "Callable[..., Any]"


def test_admitted_memory_finds_its_place(swapping: Make) -> None:
    """As in test_admission, 48 MiB of each may have to go: of chunks of 22 and 64 MiB, which are not whole segments."""
    s = swapping(200, host=100)
    a, b = s.start("a"), s.start("b")
    for program, size in ((a, 150), (b, 98)):
        program.done("alloc", 0, size * MIB)
        program.done("fill", 0, 1)
    for program in (a, b):
        program.done("add", 0, 1)
        program.done("all")


def test_memory_of_the_host_that_is_not_needed_any_more_is_given_back(swapping: Make) -> None:
    """Else it would be promised to others while it is still here."""
    s = swapping(200)
    a, b = s.start("a"), s.start("b")
    for program in (a, b):
        program.done("alloc", 0, 150 * MIB)
        program.done("fill", 0, 1)
        program.done("add", 0, 1)
    a.done("add", 0, 1)
    eventually(lambda: s.memory(a)["pinned"] >= 100 * MIB and s.memory(b)["pinned"] >= 100 * MIB)
    before = resident_set(a)
    b.running.kill()
    eventually(lambda: s.memory(a)["pinned"] == 0)
    assert resident_set(a) <= before - 100 * MIB
    a.done("all")
    c = s.start("c")
    c.done("alloc", 0, 150 * MIB)
    c.done("fill", 0, 2)
    c.done("add", 0, 1)
    assert s.away(a) > 0
    a.done("all")
    c.done("all")


def process(program: Any, file: str) -> str:
    return Path(f"/proc/{program.running.pid}/{file}").read_text()


def resident_set(program: Any) -> int:
    return int(process(program, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_memory(program: Any) -> int:
    lines = process(program, "status").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def test_where_the_system_has_no_memory_the_program_runs_on(swapping: Make) -> None:
    """It keeps its place and says why; others get theirs as soon as there is some."""
    s = swapping(200)
    a, b = s.start("a"), s.start("b")
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 1)
    # What limits private memory of a process as an exact overcommit does: mprotect(2) fails.
    before = resource.prlimit(a.running.pid, resource.RLIMIT_DATA)
    resource.prlimit(a.running.pid, resource.RLIMIT_DATA, (private_memory(a) + 40 * MIB, before[1]))
    b.done("alloc", 0, 150 * MIB)
    b.tell("fill", 0, 2)
    time.sleep(1)
    for _ in range(3):
        a.done("add", 0, 1)
    assert s.away(a) == 0
    resource.prlimit(a.running.pid, resource.RLIMIT_DATA, before)
    assert b.answer() == "0"
    a.done("all")
    b.done("all")
    a.running.kill()
    _, words = a.running.communicate(timeout=60)
    assert "the system refuses" in words
    assert "hint:" in words


def test_contexts_that_come_and_go_while_the_host_side_is_made_ready(swapping: Make) -> None:
    """Memory pinned in one goes with it, and the mover works on in the remaining ones."""
    s = swapping(200)
    s.capacity(200 + CONTEXT // MIB)
    a, b = s.start("a"), s.start("b")
    b.done("alloc", 0, 100 * MIB)
    b.done("fill", 0, 1)
    for round_ in range(6):
        a.done("context", 1)
        a.done("alloc", 1, 40 * MIB)
        b.done("alloc", 2, (20 + 10 * round_) * MIB)  # more and more has to be made ready
        time.sleep(0.03 * round_)
        a.done("context", 2)
        b.done("free", 2)
    s.capacity(200)
    a.done("alloc", 0, 150 * MIB)
    a.done("fill", 0, 2)
    b.done("add", 0, 1)
    assert s.away(a) > 0
    for program in (a, b, a):
        program.done("check", 0)  # what else a had went with its contexts
