"""Arguments of serving benchmarks: what makes no sense is refused before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        ("serve_http", ["--rates", "500,many"], "'many' is not a number above 0"),
        ("serve_http", ["--seconds", "-1"], "'-1' is not a number above 0"),
        ("serve_http", ["--budget", "nan"], "'nan' is not a number above 0"),
        ("serve_http", ["--models", "bert,nosuch"], "no model nosuch"),
        ("serve_http", ["--models", "bert"], "two at least"),
        ("serve_http", ["-o", "/nosuch/folder/result.json"], "there is no folder '/nosuch/folder'"),
        ("attainment", ["--simulate", "--seeds", "0"], "'0' is not a whole number from 1"),
        ("attainment", ["--simulate", "--seconds", "0"], "'0' is not a number above 0"),
        ("replan", ["--live", "--seconds", "inf"], "'inf' is not a number above 0"),
        ("replan", ["--live", "-o", "/"], "'/' is a folder"),
        ("replan", ["--simulate", "--gpus", "-2"], "'-2' is not a whole number from 1"),
    ],
)
def test_nonsense_is_refused_with_a_message(program: str, arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", f"bench.{program}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
