"""The script that runs the benchmarks: every step exists, none outlives its limit, what was cut short is shown."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from bench.all import STEPS, Step, command, results, run
from bench.report import Report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_names_a_script(step: Step, tmp_path: Path) -> None:
    assert importlib.util.find_spec(f"bench.{step.module}")
    args = command(step, tmp_path, quick=True, simulate=step.simulates)
    assert ("--out" in args) == ("--simulate" in args) == step.simulates
    assert 0 < step.quick_limit <= step.limit <= 600


def test_the_output_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    assert run([sys.executable, "-c", "print('hello')"], 30, log) == "ran"
    assert run([sys.executable, "-c", "raise SystemExit(3)"], 30, log) == "failed with exit code 3"
    assert "hello" in log.read_text()
    assert "hello" in capfd.readouterr().out


def test_a_step_that_takes_too_long_is_asked_to_end(tmp_path: Path) -> None:
    last_act = tmp_path / "stopped"
    code = (
        "import sys, signal, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        "try: time.sleep(600)\n"
        f"finally: pathlib.Path({str(last_act)!r}).touch()\n"
    )
    assert run([sys.executable, "-c", code], 2, tmp_path / "log.txt") == "cut short after 2 s"
    assert last_act.exists()


def test_the_results_of_a_part_are_shown(tmp_path: Path) -> None:
    report = Report({"device": "x", "simulated": True}, tmp_path / "shares.json")
    report.add("total", 0.9, ">= 0.97")
    report.add("never", float("nan"), "<= 50")
    report.put("skipped", {"scenario": "mps", "why": "no binary"})
    text = results(tmp_path)
    assert "SIMULATED" in text
    assert "skipped: mps: no binary" in text
    assert "0 targets met, 2 missed" in text
    assert "NaN" not in (tmp_path / "shares.json").read_text()
