"""The cases on GPUs, by torchrun: loads each job once for each environment, then lets the ways of a case alternate."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from bench.gangs.cases import BUSY, KINDS, WAYS, Case, Job
from bench.llm.environments import write_trace
from bench.llm.programs import READY_S, Pool, Program
from bench.llm.work import identical
from bench.own_mps import asked
from bench.report import grid
from bench.runner import CONFIGS
from bench.windows import starts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from bench.llm.rows import Budget
    from bench.llm.work import Work
    from bench.machine import Machine
    from bench.report import Report

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
NATIVE, GEMLET = "native", "gemlet"
STARTING = 30.0  # seconds until the jobs of a case are loaded
SINGLE = "100us"
EVERY = 0.5  # seconds between two changes of minima
MINIMA = ((0.75, 0.25), (0.25, 0.75), (0.0, 0.0), (0.5, 0.1))


class Stopped(Exception):
    """The time is up."""


@dataclass
class Live:
    machine: Machine
    env: Mapping[str, str]  # with a daemon of gemlet's own
    pool: Pool
    budget: Budget
    report: Report
    options: argparse.Namespace
    client: list[str]
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    alone: dict[tuple[str, int], list[Work]] = field(default_factory=dict)  # by kind and number of devices
    table: list[list[str]] = field(default_factory=list)
    logs: int = 0
    traces: int = 0
    failed: bool = False

    def run(self, cases: Sequence[Case]) -> None:
        for number, case in enumerate(cases):
            if case.devices > self.options.devices:
                print(f"\n== {case.name}: left out: needs --devices {case.devices}", flush=True)
                continue
            if not self.budget.allows(STARTING + case.seconds * 2 * len(case.ways), time.monotonic(), case.name):
                raise Stopped
            print(f"\n== {case.name}: {case.title}", flush=True)
            try:
                self.case(case)
            except RuntimeError as error:
                self.failed = True
                self.report.put("failed", {"scenario": case.name, "why": str(error)})
                print(f"failed: {case.name}: {error}", file=sys.stderr, flush=True)
            later = {job.name for case in cases[number + 1 :] for job in (*case.jobs, *case.victims)}
            self.release([key for key in self.pool.programs if key[1] not in later])

    def case(self, case: Case) -> None:
        """Raises RuntimeError, Stopped."""
        ways = [way for way in case.ways if way in self.options.ways]
        places = sorted({place(way) for way in ways} | {NATIVE})
        began = time.monotonic()
        self.rest(case.jobs)
        self.ensure([(where, job) for where in places for job in case.jobs if job.kind != "single"], case.seconds)
        print(f"programs are ready after {time.monotonic() - began:.1f} s", flush=True)
        for job in case.jobs:
            found = self.alone.setdefault(self.key(job), [])
            while len(found) < 2:
                found += self.window(case, NATIVE, "alone", [job], case.seconds)
        done: dict[str, list[list[Work]]] = {way: [] for way in ways}
        for repeat in range(self.options.repeats):
            first = repeat % len(ways)
            for way in (*ways[first:], *ways[:first]):
                done[way].append(self.window(case, place(way), way, case.jobs, case.seconds))
        for way, works in done.items():
            self.tell(case, way, works)
        if "slicing" in done and "gemlet" in done:
            ratio = self.together(case, done["gemlet"]) / self.together(case, done["slicing"])
            self.report.add(f"{case.title}: together, against time slicing", ratio, "-" if case.busy else f">= {BUSY}")

    def rate(self, job: Job, case: Case) -> float:
        """Units a second of the job alone."""
        return median(work.rate(min(case.settle, 1.0), ended(work)) for work in self.alone[self.key(job)])

    def key(self, job: Job) -> tuple[str, int]:
        return job.kind, len(job.devices) or self.options.devices

    def speeds(self, case: Case, works: Sequence[Work]) -> list[float]:
        return [
            work.rate(case.settle, ended(work)) / self.rate(job, case)
            for job, work in zip(case.jobs, works, strict=True)
        ]

    def together(self, case: Case, repeats: Sequence[Sequence[Work]]) -> float:
        """A job on all devices counts once, a single program by its part of them."""
        parts = [(len(job.devices) or self.options.devices) / self.options.devices for job in case.jobs]
        return median(sum(s * p for s, p in zip(self.speeds(case, works), parts, strict=True)) for works in repeats)

    def tell(self, case: Case, way: str, repeats: Sequence[Sequence[Work]]) -> None:
        speeds = [median(column) for column in zip(*(self.speeds(case, works) for works in repeats), strict=True)]
        worst = [
            min(works[i].worst_second(case.settle, ended(works[i])) for works in repeats) / self.rate(job, case)
            for i, job in enumerate(case.jobs)
        ]
        stalls = [max(longest_pause(works[i], case.settle) for works in repeats) for i in range(len(case.jobs))]
        verdicts = {self.answers(job, [works[i] for works in repeats]) for i, job in enumerate(case.jobs)}
        title = f"{case.title}, {WAYS[way]}"
        total = self.together(case, repeats)
        self.report.add(f"{title}: together", total, f">= {BUSY}" if way == "gemlet" and case.busy else "-")
        for job, speed, least, stall in zip(case.jobs, speeds, worst, stalls, strict=True):
            self.report.add(
                f"... {job.name}: speed against alone",
                speed,
                note=f"worst second {least:.3f}, longest stall {stall * 1000:.0f} ms",
            )
        self.report.add(
            "... answers as alone", float("DIFFER" not in verdicts), ">= 1", note=" ".join(sorted(verdicts))
        )
        if way == "gemlet" and case.shares:
            seconds = [
                (works[i].rate(t, t + 1) / self.rate(job, case) - case.shares[i])
                for works in repeats
                for i, job in enumerate(case.jobs)
                for t in starts(case.settle, ended(works[i]))
            ]
            self.report.add("... short of its share in the worst second", max(0.0, -min(seconds)), "<= 0.02")
            self.report.add(
                "... off its share in the worst second", max(map(abs, seconds)), "<= 0.02", note=self.steadiness(case)
            )
        self.table.append([case.name, way, f"{total:.3f}", " + ".join(f"{s:.3f}" for s in speeds),
                           " ".join(f"{w:.2f}" for w in worst), " ".join(f"{s * 1000:.0f}" for s in stalls),
                           " ".join(sorted(verdicts)), *self.latencies(case, repeats)])  # fmt: skip

    def latencies(self, case: Case, repeats: Sequence[Sequence[Work]]) -> list[str]:
        """Of the first job, if it generates: time per token p50 and p99, over those alone."""
        if not case.jobs[0].kind.startswith("tensor"):
            return [""]
        alone = self.alone[self.key(case.jobs[0])]
        beside = sorted(gap for works in repeats for gap in gaps(works[0], case.settle))
        by_itself = sorted(gap for work in alone for gap in gaps(work, case.settle))
        if not beside or not by_itself:
            return [""]
        return [
            ", ".join(
                f"{beside[int(q * (len(beside) - 1))] / by_itself[int(q * (len(by_itself) - 1))]:.2f}"
                for q in (0.5, 0.99)
            )
        ]

    def steadiness(self, case: Case) -> str:
        """How far seconds of the first job alone are from its mean: no share is steadier than that."""
        job = case.jobs[0]
        off = max(
            abs(work.rate(t, t + 1) / work.rate(case.settle, ended(work)) - 1)
            for work in self.alone[self.key(job)]
            for t in starts(case.settle, ended(work))
        )
        return f"alone, off its own mean in the worst second {off:.3f}"

    def answers(self, job: Job, works: Sequence[Work]) -> str:
        """Whether they are those of the job alone; where even these vary, nothing can be said."""
        reference, *others = (work.digests for work in self.alone[self.key(job)])
        if not all(identical(each, reference) for each in others):
            return "vary alone"
        return "same" if all(identical(work.digests, reference) for work in works) else "DIFFER"

    def window(self, case: Case, where: str, way: str, jobs: Sequence[Job], seconds: float) -> list[Work]:
        """Raises RuntimeError, Stopped."""
        if not self.budget.allows(seconds + 2.0, time.monotonic(), f"{case.name}/{way}"):
            raise Stopped
        victims = case.victims if way != "alone" else ()
        self.ensure([(where, job) for job in (*jobs, *victims)], seconds)
        self.prepare(where, way, jobs)
        keys = [(where, job.name) for job in jobs]
        recorded: dict[str, Any] = {}
        during = [*self.happenings(case, where, jobs)] if way != "alone" else []
        if where == GEMLET:
            during.append((min(seconds - 0.4, 3.0), lambda: self.look(case, way, jobs, recorded)))
        overtime = 90.0 if case.changing else 20.0
        done = self.pool.window(keys, seconds, [{} for _ in jobs], overtime, sorted(during, key=lambda each: each[0]))
        self.release([key for key, job in zip(keys, jobs, strict=True) if job.kind == "single"])
        self.release([(where, job.name) for job in victims])
        text = ", ".join(f"{job.name} {w.rate(0, ended(w)):.1f}/s" for job, w in zip(jobs, done, strict=True))
        print(f"{way:<10}: {text}", flush=True)
        for job, work in zip(jobs, done, strict=True):
            entry = {
                "case": case.name,
                "way": way,
                "job": job.name,
                "pace": work.pace()[:16],
                "answers": work.digests[:3],
            }
            self.report.put("windows", entry)
        if recorded:
            self.report.put("gemlet", {"case": case.name, "way": way, **recorded})
        return done

    def look(self, case: Case, way: str, jobs: Sequence[Job], recorded: dict[str, Any]) -> None:
        """The status, and the turns so far, while single programs still run."""
        recorded.update(self.status())
        if self.options.trace:
            self.traces += 1
            path = self.options.out / f"trace-{self.traces}-{case.name}-{way}.json"
            write_trace(self.env, jobs[0].name, min(case.seconds - 0.4, 3.0), path)

    def happenings(self, case: Case, where: str, jobs: Sequence[Job]) -> list[tuple[float, Callable[[], object]]]:
        found: list[tuple[float, Callable[[], object]]] = []
        if case.stopped:
            number, at, length = case.stopped
            program = self.pool.programs[where, jobs[number].name]
            found += [
                (at, partial(signal_rank, program, signal.SIGSTOP)),
                (at + length, partial(signal_rank, program, signal.SIGCONT)),
            ]
        for number, job in enumerate(case.victims):
            victim = self.pool.programs[where, job.name]
            at = 2.0 + 3.0 * number
            found.append((0.0, partial(victim.order, time.monotonic_ns(), case.seconds, {})))
            if number % 2:
                found.append((at - 1.0, partial(signal_rank, victim, signal.SIGSTOP)))
            found.append((at, partial(signal_rank, victim, signal.SIGKILL)))
        if case.changing and where == GEMLET:
            for step in range(int(case.seconds / EVERY)):
                found.append((step * EVERY, partial(self.change, jobs, MINIMA[step % len(MINIMA)])))
        return found

    def change(self, jobs: Sequence[Job], minima: Sequence[float]) -> None:
        pairs = sorted(zip(jobs, minima, strict=False), key=lambda each: each[1])
        for job, least in pairs:
            with contextlib.suppress(RuntimeError):  # both cannot have it for a moment
                asked("set", job.name, "--min", f"{least:g}", env=dict(self.env))

    def prepare(self, where: str, way: str, jobs: Sequence[Job]) -> None:
        if where != GEMLET:
            return
        for job in sorted(jobs, key=lambda each: each.min):
            wanted = job.options(way)
            if self.groups.get(job.name) != wanted:
                asked("set", job.name, *(part for each in wanted.items() for part in each), env=dict(self.env))
                self.groups[job.name] = wanted

    def rest(self, jobs: Sequence[Job]) -> None:
        """Jobs that are loaded for later cases keep nothing from these: no more can be promised than there is."""
        for name in set(self.groups) - {job.name for job in jobs}:
            asked("set", name, "--min", "0", env=dict(self.env))
            self.groups[name] = {}

    def release(self, keys: Sequence[tuple[str, str]]) -> None:
        gone = {name for _, name in keys if name in self.groups}
        self.pool.release(keys)
        for name in gone:
            with contextlib.suppress(RuntimeError):  # it went with its last program
                asked("set", name, "--min", "0", env=dict(self.env))
            del self.groups[name]

    def ensure(self, wanted: Sequence[tuple[str, Job]], seconds: float) -> None:
        fresh = {
            (where, job.name): self.program(where, job, seconds)
            for where, job in wanted
            if not self.pool.has((where, job.name))
        }
        self.pool.ensure(fresh, min(READY_S, max(5.0, self.budget.left(time.monotonic()))))

    def program(self, where: str, job: Job, seconds: float) -> Program:
        self.logs += 1
        log = self.machine.workdir / f"job-{self.logs}"
        env = dict(self.env if where == GEMLET else self.machine.env)
        units = None
        on = job.devices or tuple(range(self.options.devices))
        devices = ",".join(map(str, on))
        if job.kind == "single":
            units = log.with_suffix(".units")
            command = [*self.client, "--wait", "--seconds", f"{seconds:g}", "--file", str(units)]
        else:
            small = ["--device", "cpu", "--tiny"] if self.options.device == "cpu" else []
            command = [self.options.python, *ranks(job.kind, len(on)), *KINDS[job.kind], "--wait", *small]
        if where == GEMLET:
            self.groups[job.name] = given = job.options("gemlet")
            options = [part for each in given.items() for part in each]
            command = [
                sys.executable,
                "-m",
                "gemlet",
                "run",
                "-q",
                "--group",
                job.name,
                "--device",
                devices,
                *options,
                "--",
                *command,
            ]
        elif self.options.device == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = devices
        return Program(job.name, command, env, log, units)

    def status(self) -> dict[str, Any]:
        from bench.llm.environments import Environment

        place = Environment(GEMLET, self.env, gemlet=True)
        return place.record([])

    def show(self) -> str:
        head = ("case", "way", "together", "each", "worst second", "stall, ms", "answers", "time per token p50, p99")
        return grid(head, self.table, left=(0, 1, 6))


def ranks(kind: str, devices: int) -> list[str]:
    """The program of a job, and who starts it once for each device."""
    if kind == "jax":
        return [str(PROGRAMS / "jax_train.py")]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    return [*start, str(PROGRAMS / "ranks.py")]


def place(way: str) -> str:
    return NATIVE if way == "slicing" else GEMLET


def ended(work: Work) -> float:
    """When its work ended: what ranks still do after the window does not count, nor time after its last unit."""
    return min(work.seconds, work.times[-1]) if work.times else work.seconds


def longest_pause(work: Work, begin: float) -> float:
    """Seconds in which no unit was completed."""
    times = [t for t in work.times if begin <= t <= work.seconds]
    return max((b - a for a, b in pairwise(times)), default=work.seconds)


def gaps(work: Work, begin: float) -> list[float]:
    """Between units without a pause between them."""
    units = [(t, phase) for t, phase in zip(work.times, work.phases, strict=True) if begin <= t <= work.seconds]
    return [b - a for (a, one), (b, other) in pairwise(units) if one == other]


def signal_rank(program: Program, number: signal.Signals) -> None:
    """To rank 1 of the job."""
    for child in psutil.Process(program.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.environ().get("LOCAL_RANK") == "1":
                child.send_signal(number)
                return
    raise RuntimeError(f"{program.name} has no rank 1")


def client_command(machine: Machine) -> list[str]:
    config = CONFIGS[SINGLE]
    return [str(machine.client), "work", *config, *machine.spin(float(config[config.index("--kernel-us") + 1]))]


def no_multicast(env: Mapping[str, str]) -> dict[str, str]:
    """NCCL's use of it can put a host's devices out of service."""
    return dict(env) | {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
