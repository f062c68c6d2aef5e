"""Saturating clients and every step between them and the arbiter: for finding out why somebody waited.

    python -m bench.timeline [--simulate] [--cases 90/10:100,...] [--repeat 5] [--seconds 5] [--out DIR] [--all]

A case is the minima in per cent and the length of a kernel in microseconds. Each is run --repeat times. Of every run it
prints the worst second; of each case's worst run what was unusual in that second (late drains and wants, overruns,
revocations, times in which nobody held the token, CPUs of this host that woke up late) and the steps around the
largest. With --out the same goes to timeline.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.machine import Client, Machine, Sharing, end_on_signals
from bench.report import grid, heading
from bench.turns import Step, Turn, Usual, held, nobody, turns, unusual
from bench.windows import Worst, starts, worst_of

CASES = "90/10:100,75/25:1000,3/5/7/10/13/16/21/25:100"
TRACE = 1_000_000  # steps; a run of 5 s has some thousands
MOST_UNUSUAL = 12  # that are printed
AROUND_NS = 15_000_000  # steps this long before and after the largest are printed
MOST_STEPS = 60


@dataclass(frozen=True)
class Case:
    minima: tuple[float, ...]
    kernel_us: float

    @classmethod
    def read(cls, text: str) -> Case:
        """``90/10:100``. Raises ValueError."""
        shares, _, kernel = text.partition(":")
        return cls(tuple(float(s) / 100 for s in shares.split("/")), float(kernel or 100))

    def __str__(self) -> str:
        return f"{'/'.join(f'{s * 100:g}' for s in self.minima)} with {self.kernel_us:g} us"


@dataclass
class Run:
    case: Case
    clients: list[Client]
    rate: float
    start: int
    seconds: float
    trace: list[Step]
    late: list[tuple[int, int, int]]  # of the host: ns since the start, ns late, CPU
    used: dict[str, float]

    def worst(self) -> tuple[Client, Worst]:
        found = [
            (c, worst_of(c.done, promise, self.rate, 0, self.seconds))
            for c, promise in zip(self.clients, self.case.minima, strict=True)
        ]
        return max(found, key=lambda pair: abs(pair[1].error))


def run(machine: Machine, case: Case, seconds: float, lead: int | None) -> Run:
    work = ["work", "--kernel-us", str(case.kernel_us), "--batch", str(max(1, round(1000 / case.kernel_us)))]
    work += machine.spin(case.kernel_us)
    (alone,) = machine.run([Client(work)], None, 2)
    parameters = {"trace": TRACE} | ({} if lead is None else {"lead": lead})
    heartbeat = Client(["heartbeat", "--rate", "500"])
    with Sharing(machine, **parameters) as sharing:
        clients = []
        for i, low in enumerate(case.minima):
            sharing.group(f"g{i}", min=low)
            clients.append(Client(work, f"g{i}"))
        machine.run([*clients, heartbeat], sharing, seconds)
        trace, used = sharing.trace(), sharing.used()
    rate = alone.result["work_s"] / alone.result["seconds"]
    return Run(case, clients, rate, machine.started_ns, seconds, trace, heartbeat.rows, used)


def summary(run: Run, number: int) -> str:
    client, worst = run.worst()
    total = sum(c.work_between(0, run.seconds) for c in run.clients) / (run.seconds * run.rate)
    charged = [f"{c.group} {run.used[c.group or ''] / (c.done.total / run.rate):.4f}" for c in run.clients]
    return (
        f"{run.case}, run {number}: total {total:.4f}, worst second from {worst.begin:.2f} s: {client.group} "
        f"{worst.error:+.4f}; charged / done: {', '.join(charged)}"
    )


def explain(run: Run) -> str:
    """What was unusual in the worst second, and the steps around the largest of it."""
    client, worst = run.worst()
    found = turns(run.trace)
    begin, end = run.start + int(worst.begin * 1e9), run.start + int((worst.begin + 1) * 1e9)
    lines = [f"{run.case}: worst second from {worst.begin:.2f} s: {client.group} off by {worst.error:+.4f}", ""]
    lines += [compared(run, found, begin, end), ""]
    seen = unusual(found, begin, end, Usual.of(found))
    largest = sorted(seen, key=lambda u: u.by, reverse=True)[:MOST_UNUSUAL]
    lines += (
        [f"unusual in it: {len(seen)}, the largest {len(largest)} in order of time"]
        if seen
        else ["unusual in it: nothing"]
    )
    lines += [f"  {(u.at - run.start) / 1e9:9.4f} s  {u.text}" for u in sorted(largest, key=lambda u: u.at)]
    late = [(at, by, cpu) for at, by, cpu in run.late if begin <= run.start + at < end]
    lines.append(
        f"CPUs of this host that woke up more than 1 ms late in it: {len(late)} times; in the whole run {len(run.late)}"
    )
    for at, by, cpu in sorted(late, key=lambda entry: entry[1], reverse=True)[:MOST_UNUSUAL]:
        lines.append(f"  {at / 1e9:9.4f} s  CPU {cpu}: {by / 1e6:.1f} ms late")
    if largest:
        centre = largest[0].at
        steps = [s for s in run.trace if abs(s[0] - centre) <= AROUND_NS][:MOST_STEPS]
        lines += ["", "steps around the largest:", *(step_line(run.start, step) for step in steps)]
    return "\n".join(lines)


def compared(run: Run, found: list[Turn], begin: int, end: int) -> str:
    """This second beside the median of all seconds, by group."""
    seconds = [run.start + int(t * 1e9) for t in starts(0, run.seconds)]
    second = 1_000_000_000

    def row(name: str, of: object) -> list[str]:
        assert callable(of)
        return [name, f"{of(begin):.4f}", f"{statistics.median(of(s) for s in seconds):.4f}"]

    rows = []
    for c in run.clients:
        group = c.group or ""
        rows += [
            row(
                f"{group}: work done / rate",
                lambda b, c=c: c.work_between((b - run.start) / 1e9, (b - run.start) / 1e9 + 1) / run.rate,
            ),
            row(f"{group}: held the token, s", lambda b, g=group: held(found, g, b, b + second) / 1e9),
            row(f"{group}: turns", lambda b, g=group: sum(t.group == g and b <= t.granted < b + second for t in found)),
        ]
    rows.append(row("nobody held it, s", lambda b: sum(length for _, length in nobody(found, b, b + second)) / 1e9))
    return grid(["", "this second", "median second"], rows)


def step_line(start: int, step: Step) -> str:
    at, group, client, what, value = step
    is_time = what in {"grant", "update", "revoke", "drained"} and value > 0
    relative = f"in {(value - at) / 1e6:.2f} ms" if is_time else str(value)
    return f"   {(at - start) / 1e6:10.3f} ms  {group} {client} {what} {relative}"


def phases(run: Run) -> str:
    """How long the parts of a hand-over took, over the whole run."""
    found = turns(run.trace)
    values = {
        "turn ms": [t.length / 1e6 for t in found if t.length is not None],
        "tail said, us": [t.tail / 1e3 for t in found if t.stopped is not None],
        "stop to drained us": [t.drain / 1e3 for t in found if t.drain is not None],
        "stop to request us": [t.pause / 1e3 for t in found if t.pause is not None],
    }
    rows = []
    for name, each in values.items():
        if len(each) > 10:
            q = statistics.quantiles(each, n=100)
            rows.append([name, str(len(each)), *(f"{q[n - 1]:.1f}" for n in (10, 50, 90, 99)), f"{max(each):.1f}"])
    return grid(["", "n", "p10", "p50", "p90", "p99", "max"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--cases", default=CASES, help="minima in per cent : kernel in us, ...")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--lead", type=int, help="ns before the device is free that the next one is told")
    parser.add_argument("--all", action="store_true", help="every step of every run")
    parser.add_argument("--out", type=Path, help="directory for timeline.txt")
    o = parser.parse_args()
    try:
        cases = [Case.read(text) for text in o.cases.split(",")]
    except ValueError as error:
        parser.error(f"--cases: {error}")
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as workdir, contextlib.ExitStack() as stack:
        copy = None
        if o.out:
            o.out.mkdir(parents=True, exist_ok=True)
            copy = stack.enter_context((o.out / "timeline.txt").open("w"))

        def say(text: str) -> None:
            print(text, flush=True)
            if copy:
                print(text, file=copy, flush=True)

        machine = Machine(simulate=o.simulate, workdir=Path(workdir))
        say(heading(machine.describe()))
        for case in cases:
            worst: Run | None = None
            for number in range(1, o.repeat + 1):
                this = run(machine, case, o.seconds, o.lead)
                say(summary(this, number))
                if o.all:
                    say("\n".join(step_line(this.start, step) for step in this.trace))
                if worst is None or abs(this.worst()[1].error) > abs(worst.worst()[1].error):
                    worst = this
            if worst:
                say(f"\n{phases(worst)}\n\n{explain(worst)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
