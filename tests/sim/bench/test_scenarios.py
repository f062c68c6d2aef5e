"""The benchmarks run to their end on the simulated machine, short; what they find there is loosely plausible."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from bench import gaiagpu, latency, shares, sharing, timeline
from bench.machine import Client, Machine, Sharing, program
from bench.report import Report
from bench.runner import Bench
from gemlet import paths
from gemlet.devices.mps import PROGRAM, control_of, process
from tests import simulated

B = TypeVar("B", bound=Bench)
ROOT = Path(__file__).resolve().parents[3]
SIM = Path(paths.lib_dir()) / "sim"
pytestmark = pytest.mark.slow
needs_mps = pytest.mark.skipif(
    not (SIM / PROGRAM).exists(), reason=f"the simulated {PROGRAM} is not built: make native"
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return simulated.machine(tmp_path_factory.mktemp("machine"))


def made(kind: type[B], machine: Machine, seconds: float, path: Path) -> B:
    return kind(machine, seconds, Report(machine.describe(), path))


def document(path: Path) -> dict[str, object]:
    found = json.loads(path.read_text())
    assert found["about"]["simulated"] is True
    assert not found.get("failed")
    assert isinstance(found, dict)
    return found


@pytest.mark.alone
def test_programs_begin_together(machine: Machine) -> None:
    args = ["work", "--kernel-us", "100", "--scale", str(machine.scale(100)), "--marks", "10"]
    first, second = Client(args), Client(args, begin=0.5)
    machine.run([first, second], None, 1.0)
    assert first.done.entries[0][0] < 0.5
    assert 0.5 < second.done.entries[0][0] < 1.0
    assert first.result["seconds"] == 1.0
    assert second.result["seconds"] == 0.5


def test_a_program_that_fails_is_named_and_none_is_left(machine: Machine) -> None:
    busy = Client(["work", "--kernel-us", "100", "--scale", "1"])
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        machine.run([busy, Client(["nonsense"])], None, 30)
    assert str(machine.client) not in [argument for p in psutil.Process().children() for argument in p.cmdline()]


@pytest.mark.alone
def test_requests_have_latencies_from_their_arrival(machine: Machine) -> None:
    args = ["latency", "--kernel-us", "2000", "--scale", str(machine.scale(2000)), "--rate", "400"]
    (c,) = machine.run([Client(args)], None, 1.0)
    # 400/s of 2 ms is 80 %: they queue, and who queues waits longer than it works.
    assert 250 < c.result["requests"] < 550
    assert sum(latency < 2000 for latency in c.latencies_us) <= c.result["unserved"]
    assert sum(latency > 3000 for latency in c.latencies_us) > 50
    again = Client(args)
    machine.run([again], None, 1.0)
    arrivals = [
        [round(at * 1e6 - latency) for (at, _), latency in zip(x.done.entries, x.latencies_us, strict=True)]
        for x in (c, again)
    ]
    assert arrivals[0][:200] == pytest.approx(arrivals[1][:200], abs=2)  # the same seed, the same arrivals


@pytest.mark.alone
def test_requests_that_are_never_served_count(machine: Machine) -> None:
    args = ["latency", "--kernel-us", "20000", "--scale", str(machine.scale(20000)), "--rate", "100"]
    (c,) = machine.run([Client(args)], None, 1.0)
    assert c.result["unserved"] > 20
    assert len(c.latencies_us) == c.result["requests"]


@pytest.mark.alone
def test_bursts_catch_up_when_they_were_held_back(machine: Machine) -> None:
    args = ["burst", "--kernel-us", "100", "--scale", str(machine.scale(100)), "--batch", "10", "--rate", "500"]
    with Sharing(machine) as sharing:
        sharing.group("a", max=0.25)  # half of what it asks for
        (c,) = machine.run([Client(args, "a")], sharing, 2.0)
    assert c.result["due"] == 1000
    assert 200 < c.result["submitted"] < 900
    assert len(c.latencies_us) == c.result["submitted"]
    assert c.latencies_us[-1] > 300_000  # the backlog grew


@pytest.mark.alone
def test_latency_beside_a_neighbour(machine: Machine, tmp_path: Path) -> None:
    bench = made(latency.LatencyBench, machine, 2.0, tmp_path / "latency.json")
    bench.ways = ("slicing", "gemlet")
    for name in ("alone", "100us", "graph"):
        bench.scenario(name)
    bench.finish()
    rows = document(tmp_path / "latency.json")["latencies"]
    assert isinstance(rows, list)
    assert [(r["neighbour"], r["way"]) for r in rows] == [
        (None, "alone"), ("100us", "slicing"), ("100us", "gemlet"), ("graph", "slicing"), ("graph", "gemlet"),
    ]  # fmt: skip
    for row in rows:
        assert 200 <= row["p50_us"] <= row["p99_us"] <= row["largest_us"]
        assert row["requests"] > 40
    assert rows[2]["kept"] > 0.03  # about .2 where the machine does nothing else
    assert len(rows[2]["targets"]) == 3


@needs_mps
def test_latency_under_mps(machine: Machine, tmp_path: Path) -> None:
    bench = made(latency.LatencyBench, machine, 2.0, tmp_path / "latency.json")
    bench.ways = ("mps", "mps-gemlet-sm")
    bench.scenario("100us")
    found = document(tmp_path / "latency.json")
    assert [r["way"] for r in found["latencies"]] == ["alone", "mps", "mps-gemlet-sm"]  # type: ignore[attr-defined]
    assert "skipped" not in found
    assert not machine.mps


@pytest.mark.alone
def test_limits_swaps_and_bursts(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "CHANGES", 1)
    bench = made(shares.SharesBench, machine, 1.0, tmp_path / "shares.json")
    for name in ("limit", "swap", "bursts", "charges"):
        bench.scenario(name)
    rows = document(tmp_path / "shares.json")["rows"]
    assert isinstance(rows, list)
    values = {row["what"]: row["value"] for row in rows}
    assert values["limit 50 -> 20 %: ms until it holds, by the switching point, worst"] < 700
    assert values["bursts with a minimum of 30% beside batches: total"] > 0.3
    assert all(v > 0.5 for what, v in values.items() if "charged / done" in what)


@pytest.mark.alone
def test_a_neighbour_comes_and_a_limit_is_set(machine: Machine, tmp_path: Path) -> None:
    made(sharing.SharingBench, machine, 2.0, tmp_path / "sharing.json").scenario("elastic")
    (course,) = document(tmp_path / "sharing.json")["courses"]  # type: ignore[misc]
    points = course["groups"][0]["points"]  # type: ignore[index]
    # Alone, beside the neighbour, alone again, under the limit; loosely.
    alone, beside, again, limited = (
        statistics.mean(share for t, share in points if begin + 0.4 < t < begin + 2) for begin in (0, 2, 4, 6)
    )
    assert beside < 0.75 * alone
    assert limited < 0.85 * again


@pytest.mark.alone
def test_gaiagpus_parts_are_kept(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = made(gaiagpu.GaiaBench, machine, 1.5, tmp_path / "gaiagpu.json")
    bench.chose(argparse.Namespace(cases=(2,)))
    for name in bench.scenarios:
        bench.scenario(name)
    bench.finish()
    found = document(tmp_path / "gaiagpu.json")
    rows = {row["what"]: row for row in found["rows"]}  # type: ignore[attr-defined]
    memory = {what: row["verdict"] for what, row in rows.items() if "memory held" in what or "least / most" in what}
    assert len(memory) == 4
    assert set(memory.values()) == {"met"}, rows
    used, alone = (f"2 parts: execution time / due, {gaiagpu.BUSY}, {others}" for others in gaiagpu.OTHERS)
    assert rows[used]["target"] == rows[alone]["target"] == gaiagpu.LONGER
    assert rows[alone]["value"] > 0.8  # the other part is empty, and the program keeps to its own all the same
    (course,) = found["courses"]  # type: ignore[misc]
    first, second = course["groups"]  # type: ignore[index]
    assert second["begin"] > first["begin"]
    assert all(held == 0 for at, held in second["held"] if at < second["begin"])
    assert 0.9 < max(held for _, held in second["held"]) <= 1
    assert "isolation: share in any second off by" in capsys.readouterr().out


def test_the_timeline_explains_its_worst_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated.need_driver()
    options = ["--simulate", "--cases", "75/25:1000", "--repeat", "2", "--seconds", "1.5", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["timeline.py", *options])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert timeline.main() == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    text = (tmp_path / "timeline.txt").read_text()
    assert text.startswith("SIMULATED")
    assert "75/25 with 1000 us, run 2:" in text
    assert "g1: held the token, s" in text
    assert "CPUs of this host that woke up more than 1 ms late" in text
    assert text.strip() in capsys.readouterr().out


def test_memory_that_moves(tmp_path: Path) -> None:
    simulated.need_driver()
    chosen = "link,one_way,fits,ninety,dead"
    options = ["--simulate", "--only", chosen, "--seconds", "16", "--capacity-gib", "0.25", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.swap", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = document(tmp_path / "swap.json")
    rows = {row["what"]: row for row in found["rows"]}  # type: ignore[attr-defined]
    assert rows["2 of 40 %: bytes moved"]["verdict"] == "met"
    assert rows["link: both ways at a time, GB/s"]["value"] > 1
    assert any("device to host: ms per GiB" in what for what in rows)
    assert any("one out while the other comes in: GB/s" in what for what in rows)
    (skipped,) = found["skipped"]  # type: ignore[misc]
    assert "CUDA runtime" in skipped["why"]
    assert all(h["out_gib"] + h["in_gib"] > 0 for h in found["hand_overs"])  # type: ignore[attr-defined]


def test_training_says_why_it_does_not_run_here() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.training", "--simulate"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "skipped: eager: PyTorch needs the CUDA runtime" in done.stdout


def test_training_checks_itself_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: bench/training.py --cpu-check was not run")
    args = [sys.executable, "-m", "bench.training", "--cpu-check", "--seconds", "2", "--out", str(tmp_path)]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert all(row["verdict"] != "missed" for row in rows)


@needs_mps
def test_mps_is_stopped_after_an_error(machine: Machine) -> None:
    pids: list[int] = []

    def fails() -> None:
        with machine.under_mps():
            folder = Path(machine.env["CUDA_MPS_PIPE_DIRECTORY"])
            daemon = control_of(folder)
            assert daemon
            pids.append(daemon.pid)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fails()
    assert process(pids[0]) is None
    assert not machine.mps


@needs_mps
def test_mps_is_stopped_by_a_signal(tmp_path: Path) -> None:
    code = (
        "import pathlib, time\n"
        "from bench.machine import Machine, end_on_signals\n"
        "end_on_signals()\n"
        f"m = Machine(simulate=True, workdir=pathlib.Path({str(tmp_path)!r}))\n"
        "with m.under_mps():\n"
        f"    print('ready', flush=True); print(m.env['CUDA_MPS_PIPE_DIRECTORY'], flush=True); time.sleep(60)\n"
    )
    with program([sys.executable, "-c", code], dict(os.environ)) as running:
        assert running.stdout
        assert running.stdout.readline().strip() == "ready"
        folder = Path(running.stdout.readline().strip())
        daemon = control_of(folder)
        assert daemon
        running.terminate()
        assert running.wait(30) == 128 + signal.SIGTERM
    assert process(daemon.pid) is None
    assert not folder.parent.exists()
