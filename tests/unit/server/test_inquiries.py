"""Programs that come and go while others of their user's let nobody look at them leave nothing behind in the daemon."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compiled import compiled

SERVER = Path(__file__).resolve().parents[3] / "native/server"


def test_what_has_gone_is_not_looked_at_any_more() -> None:
    program = compiled(
        "g++",
        *("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SERVER.parent}"),
        sources=(Path(__file__).with_name("inquiries_test.cpp"), SERVER / "inquiries.cpp"),
        headers=tuple(SERVER / name for name in ("inquiries.hpp", "process.hpp", "descriptor.hpp")),
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["looked at 101", "found 101"]
