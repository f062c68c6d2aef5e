"""Runs the benchmarks one after another, each within its time, and prints what came of it.

    python -m bench.all --out DIR [--quick] [--simulate] [--only latency,shares,...] [--budget SECONDS]

Builds nothing but the benchmarks' own program. Every benchmark writes its results to DIR as they come, so what is cut
short leaves what it had; the whole output goes to DIR/log.txt. A step for which no budget is left is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.latency_table import table
from bench.machine import end_on_signals
from bench.report import Row, heading, line

ROOT = Path(__file__).resolve().parent.parent
GRACE = 30  # seconds between being asked to end and being killed: MPS is stopped in them
LEAST = 20  # seconds left under which no step is begun


@dataclass(frozen=True)
class Step:
    name: str
    module: str
    limit: int  # seconds
    quick_limit: int
    args: str = ""
    quick: str = ""
    simulates: bool = True  # has the options --simulate and --out


# The most important first, in case time is short.
STEPS = [
    Step(
        "latency", "latency", 540, 150,
        quick="--seconds 4 --only alone,100us,1ms --ways alone,slicing,gemlet,mps,mps-gemlet",
    ),
    Step("shares", "shares", 300, 120, quick="--seconds 3"),
    Step(
        "sharing", "sharing", 420, 120, quick="--seconds 3 --only unmanaged,shares,elastic,many",
    ),
    Step("timeline", "timeline", 240, 60, args="--repeat 6", quick="--repeat 2 --seconds 3"),
    Step(
        "training", "training", 560, 240, quick="--seconds 5 --only eager --ways slicing,gemlet",
    ),
    Step("swap", "swap", 480, 240, quick="--quick"),
    Step("gaiagpu", "gaiagpu", 300, 120, quick="--seconds 3 --cases 2,8 --only memory,isolation"),
    Step("frameworks", "frameworks", 300, 300, simulates=False),
    Step("memory", "memory_truth", 60, 60, simulates=False),
    Step("arbiter", "arbiter_latency", 60, 60, quick="--decisions 2000", simulates=False),
    Step("frontend", "frontend", 120, 60, quick="--seconds 2", simulates=False),
    Step("start", "start", 60, 60, quick="--rounds 4", simulates=False),
]  # fmt: skip
NEEDS_NO_GPU = {"arbiter"}


def command(step: Step, out: Path, *, quick: bool, simulate: bool) -> list[str]:
    args = shlex.split(step.quick if quick else step.args)
    if step.simulates:
        args += ["--out", str(out), *(["--simulate"] if simulate else [])]
    return [sys.executable, "-m", f"bench.{step.module}", *args]


def run(args: list[str], limit: float, log: Path) -> str:
    """How it ended. Its output goes to stdout and to the log as it comes."""
    with log.open("a") as copy:
        print(f"== {shlex.join(args)}", file=copy)
    tee = subprocess.Popen(["tee", "-a", log], stdin=subprocess.PIPE, start_new_session=True)
    assert tee.stdin
    # A session of its own, so that a signal to this one leaves it the time to stop what it has started.
    step = subprocess.Popen(
        args, stdout=tee.stdin, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT, env=unbuffered()
    )
    tee.stdin.close()
    try:
        return outcome(step.wait(limit))
    except subprocess.TimeoutExpired:
        return f"cut short after {limit:.0f} s"
    finally:
        end(step)
        tee.wait()


def outcome(code: int) -> str:
    return "ran" if code == 0 else f"failed with exit code {code}"


def unbuffered() -> dict[str, str]:
    return dict(os.environ, PYTHONUNBUFFERED="1")


def end(step: subprocess.Popen[bytes]) -> None:
    """Asks it to end, then ends it and whatever it has started in its session."""
    if step.poll() is None:
        step.terminate()
        try:
            step.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(step.pid, signal.SIGKILL)
            step.wait()


def results(out: Path) -> str:
    """All rows with a verdict, and the tables of latencies, from the files in ``out``."""
    parts = []
    for path in sorted(out.glob("*.json")):
        document = json.loads(path.read_text())
        if "rows" not in document:
            continue
        rows = [Row.from_dict(row) for row in document["rows"]]
        parts += [f"\n{path.stem}: {heading(document['about'])}", *map(line, rows)]
        if document.get("latencies"):
            parts += ["", table(document["latencies"])]
        for kind in ("skipped", "failed", "doubtful"):
            parts += [f"{kind}: {entry['scenario']}: {entry['why']}" for entry in document.get(kind, [])]
        verdicts = [row.verdict for row in rows]
        parts.append(f"{path.stem}: {verdicts.count('met')} targets met, {verdicts.count('missed')} missed")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for results; made if it is not there")
    parser.add_argument("--only", default=",".join(s.name for s in STEPS), help="steps, in this order: %(default)s")
    parser.add_argument("--quick", action="store_true", help="minutes instead of half an hour")
    parser.add_argument("--simulate", action="store_true", help="on the simulated machine: measures no GPU")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all of it")
    o = parser.parse_args()
    by_name = {step.name: step for step in STEPS}
    names = o.only.split(",")
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(by_name)}")
    end_on_signals()
    o.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    endings: list[tuple[str, str]] = []
    try:
        for name in names:
            step = by_name[name]
            left = o.budget - (time.monotonic() - begin) - GRACE
            if o.simulate and not step.simulates and name not in NEEDS_NO_GPU:
                endings.append((name, "left out: it needs a GPU"))
                continue
            if left < LEAST:
                endings.append((name, "left out: the budget is used up"))
                continue
            print(f"\n== {name}", flush=True)
            limit = min(step.quick_limit if o.quick else step.limit, left)
            started = time.monotonic()
            ended = run(command(step, o.out, quick=o.quick, simulate=o.simulate), limit, o.out / "log.txt")
            endings.append((name, f"{ended}, {time.monotonic() - started:.0f} s"))
    finally:
        print(results(o.out))
        print("\n" + "\n".join(f"{name:<12} {how}" for name, how in endings), flush=True)
    return 0 if all(how.startswith(("ran", "left out")) for _, how in endings) else 1


if __name__ == "__main__":
    raise SystemExit(main())
