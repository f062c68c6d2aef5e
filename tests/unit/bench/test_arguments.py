"""Arguments of serving benchmarks: what makes no sense is refused before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        ("serve_http.py", ["--rates", "500,many"], "'many' is not a number above 0"),
        ("serve_http.py", ["--seconds", "-1"], "'-1' is not a number above 0"),
        ("serve_http.py", ["--budget", "nan"], "'nan' is not a number above 0"),
        ("serve_http.py", ["--models", "bert,nosuch"], "no model nosuch"),
        ("serve_http.py", ["--models", "bert"], "two at least"),
        ("serve_http.py", ["-o", "/nosuch/folder/result.json"], "there is no folder '/nosuch/folder'"),
        ("attainment.py", ["--simulate", "--seeds", "0"], "'0' is not a whole number from 1"),
        ("attainment.py", ["--simulate", "--seconds", "0"], "'0' is not a number above 0"),
        ("replan.py", ["--live", "--seconds", "inf"], "'inf' is not a number above 0"),
        ("replan.py", ["--live", "-o", "/"], "'/' is a folder"),
        ("replan.py", ["--simulate", "--gpus", "-2"], "'-2' is not a whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(program: str, arguments: list[str], words: str) -> None:
    command = [sys.executable, str(BENCH / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
