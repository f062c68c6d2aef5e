"""The hook lives on in a program to which the system gives no more memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compiled import compiled

ROOT = Path(__file__).parents[3]
SOURCES = (Path(__file__).parent / "native" / "last_memory_test.cpp", ROOT / "native/hook/link/last_memory.cpp")


def test_new_takes_from_the_reserve() -> None:
    program = compiled("c++", "-std=c++20", "-O1", "-fno-builtin-malloc", sources=SOURCES)
    assert subprocess.run([program], timeout=60, check=False).returncode == 0
