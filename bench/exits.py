"""Do programs that end while their work is queued end as well with gemlet as without?

    python -m bench.exits --out DIR [--count 100] [--jobs 4] [--only queued,busy,...] [--budget SECONDS] [--simulate]

Each way to end is taken by ``--count`` programs with the hook and as many without, a few of each alternately:

    queued    launches, then exit()                    busy      exit() while four threads launch
    waiting   exit() while a thread waits              thread    exit() by a thread while the main one waits
    torch     PyTorch, returns with work queued        rank      the same under DistributedDataParallel with NCCL, and
                                                                 threads of the loader of data

First notes what the driver answers in each handler that runs at a program's exit, so when it is torn down.
Counts exit statuses other than 0; what has not ended after a minute counts as hung. The part `failures` of the result
has the last words of each. A program that dies in a thread of the hook says nothing, since such a thread blocks
signals; one that dies elsewhere names the thread.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import Machine, Sharing, end_on_signals
from bench.report import Report

ROOT = Path(__file__).resolve().parent
HUNG_S = 60.0
TAIL = 2000  # characters of the last words that are kept
GROUPS = ("one", "two")
CLIENT = {
    "queued": ["--how", "queued"],
    "busy": ["--how", "busy", "--threads", "4"],
    "waiting": ["--how", "waiting"],
    "thread": ["--how", "thread"],
}
TORCH = {"torch": [], "rank": ["--rank"]}
KERNELS_US = (5, 20, 100, 500)


def status(code: int | None) -> str:
    if code is None:
        return "hung"
    if code >= 0:
        return str(code)
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@dataclass
class Tally:
    """What programs of one kind, with or without the hook, ended with."""

    statuses: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    @property
    def failed(self) -> int:
        return self.statuses.total() - self.statuses["0"]

    def note(self) -> str:
        ends = ", ".join(f"{number} x {what}" for what, number in self.statuses.most_common() if what != "0")
        return f"of {self.statuses.total()}, the slowest {self.slowest:.1f} s{': ' if ends else ''}{ends}"


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


class Leaving:
    def __init__(self, machine: Machine, sharing: Sharing, report: Report, seed: int) -> None:
        self._machine = machine
        self._sharing = sharing
        self._report = report
        self._random = random.Random(seed)
        self._scale = [*machine.spin(100)]

    def command(self, kind: str) -> list[str]:
        seconds = f"{self._random.uniform(0.005, 0.15):.4f}"
        if kind in TORCH:
            program = str(ROOT / "torch_programs/leave.py")
            return [sys.executable, "-X", "faulthandler", program, *TORCH[kind], "--seconds", seconds]
        kernel = str(self._random.choice(KERNELS_US))
        work = ["--kernel-us", kernel, *self._scale, "--seconds", seconds]
        return [str(self._machine.client), "leave", *CLIENT[kind], *work]

    def order(self) -> None:
        """Notes when the driver is torn down: what it answers (0: success) in each handler at a program's exit."""
        command = [str(self._machine.client), "leave", "--how", "order", "--kernel-us", "100", *self._scale]
        for hooked in (False, True):
            env = self._sharing.env(GROUPS[0]) if hooked else self._machine.env
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HUNG_S, check=False)
            answers = [line.removeprefix("order: ") for line in done.stderr.splitlines() if line.startswith("order: ")]
            self._report.put("order", {"hook": hooked, "status": status(done.returncode), "answers": answers})
            print(f"{'with' if hooked else 'without'} the hook, at exit: {'; '.join(answers)}", flush=True)

    def batch(self, kind: str, jobs: int, *, hooked: bool, tally: Tally) -> None:
        """Runs ``jobs`` programs at once to their end."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            running = []
            for number in range(jobs):
                env = self._sharing.env(GROUPS[number % len(GROUPS)]) if hooked else self._machine.env
                output = stack.enter_context(tempfile.TemporaryFile(dir=self._machine.workdir))
                process = subprocess.Popen(
                    self.command(kind), env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
                stack.callback(end, process)
                running.append((process, output))
            for process, output in running:
                try:
                    code: int | None = process.wait(max(0.0, began + HUNG_S - time.monotonic()))
                except subprocess.TimeoutExpired:
                    code = None
                tally.statuses[status(code)] += 1
                if code != 0:
                    output.seek(0)
                    said = output.read().decode(errors="replace")[-TAIL:]
                    entry = {"kind": kind, "hook": hooked, "status": status(code), "said": said}
                    self._report.put("failures", {**entry, "command": process.args})
        tally.slowest = max(tally.slowest, time.monotonic() - began)

    def measure(self, kind: str, count: int, jobs: int, deadline: float) -> int:
        """How many failed with the hook."""
        tallies = {True: Tally(), False: Tally()}
        done = 0
        while done < count and time.monotonic() < deadline:
            now = min(jobs, count - done)
            for hooked in (True, False):
                self.batch(kind, now, hooked=hooked, tally=tallies[hooked])
            done += now
        if not done:
            return 0
        for hooked, target in ((False, "-"), (True, "<= 0")):
            tally = tallies[hooked]
            what = f"{kind}, {'with' if hooked else 'without'} the hook: programs that failed"
            self._report.add(what, tally.failed, target, note=tally.note())
        return tallies[True].failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="on the simulated machine")
    parser.add_argument("--out", type=Path, help="directory for exits.json, written as results come")
    parser.add_argument("--count", type=int, default=100, help="programs of each kind, with and without the hook")
    parser.add_argument("--jobs", type=int, default=4, help="at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--only", default="", help=f"of {','.join([*CLIENT, *TORCH])}")
    options = parser.parse_args()
    has_torch = not options.simulate and importlib.util.find_spec("torch") is not None
    kinds = options.only.split(",") if options.only else [*CLIENT, *(TORCH if has_torch else [])]
    if unknown := [kind for kind in kinds if kind not in CLIENT and kind not in TORCH]:
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join([*CLIENT, *TORCH])}")
    if options.count < 1 or options.jobs < 1:
        parser.error("--count and --jobs are numbers from 1")
    end_on_signals()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as workdir:
        machine = Machine(simulate=options.simulate, workdir=Path(workdir))
        report = Report(machine.describe(), options.out / "exits.json" if options.out else None)
        with Sharing(machine) as sharing:
            for group in GROUPS:
                sharing.group(group, min=0.5)
            leaving = Leaving(machine, sharing, report, options.seed)
            failed = 0
            leaving.order()
            for number, kind in enumerate(kinds):
                # What one kind leaves of its part is the next ones'.
                now = time.monotonic()
                part = now + (deadline - now) / (len(kinds) - number)
                failed += leaving.measure(kind, options.count, options.jobs, part)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
