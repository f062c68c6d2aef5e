"""Whoever calls the server has the mutex before the next round of the thread that always has something to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compiled import compiled

NATIVE = Path(__file__).resolve().parents[3] / "native"


def test_nobody_who_waits_is_passed_over() -> None:
    program = compiled(
        "g++",
        *("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}"),
        sources=(Path(__file__).with_name("yielding_mutex_test.cpp"),),
        headers=(NATIVE / "server" / "yielding_mutex.hpp", NATIVE / "futex.h"),
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0\n"
