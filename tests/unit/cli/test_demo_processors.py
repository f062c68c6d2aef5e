"""Whether the processors had time for the demo's programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemlet.cli.demo_processors import Waits, note


def counter(proc: Path, pid: int, tid: int, waited: int) -> None:
    folder = proc / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"1000 {waited} 7\n")


def test_it_is_what_was_added_while_one_looked(tmp_path: Path) -> None:
    waits = Waits(tmp_path)
    counter(tmp_path, 1, 1, 500_000_000)
    counter(tmp_path, 2, 2, 0)
    waits.look([1, 2])
    counter(tmp_path, 1, 1, 900_000_000)
    counter(tmp_path, 1, 9, 100_000_000)  # a thread that came meanwhile
    waits.look([1, 2])
    counter(tmp_path, 1, 9, 200_000_000)
    waits.look([1, 2])
    assert waits.part(seconds=2.0, programs=2) == pytest.approx((0.4 + 0.1) / 4)


def test_without_counters_nothing_is_known(tmp_path: Path) -> None:
    waits = Waits(tmp_path)
    waits.look([1])
    assert waits.part(1.0, 3) == 0.0


def test_this_kernel_counts() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count how long threads wait")
    waits = Waits()
    waits.look([os.getpid()])
    assert waits.part(1.0, 1) >= 0.0


def test_the_note_says_how_much() -> None:
    assert "waited for one for 12% of their time" in note(0.123)
