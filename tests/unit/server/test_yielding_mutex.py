"""A thread that calls the server has the mutex before the next round of the one that always has something to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compiled import compiled

NATIVE = Path(__file__).resolve().parents[3] / "native"


@pytest.fixture(scope="module")
def printed() -> list[str]:
    program = compiled(
        "g++",
        *("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}"),
        sources=(Path(__file__).with_name("yielding_mutex_test.cpp"),),
        headers=tuple(NATIVE / name for name in ("server/yielding_mutex.hpp", "server/round.hpp", "futex.h")),
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def test_nobody_who_waits_is_passed_over(printed: list[str]) -> None:
    assert printed[0] == "0"


def test_a_round_is_over_as_soon_as_somebody_waits(printed: list[str]) -> None:
    assert printed[1] == "0 1 0 1"
