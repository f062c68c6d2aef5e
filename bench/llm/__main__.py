"""Programs bound by their host, with real frameworks: what each gets done beside others, in each way to share a GPU.

    python -m bench.llm --out DIR [--quick] [--rows NAME,...] [--ways WAY,...] [--budget SECONDS]
    python -m bench.llm --device cpu --simulate --rows generators-2 --seconds 3 --repeats 1     checks the script only

Ways of a row alternate; a program is loaded once for each way and then works for one window after another. Prints each
window as it ends, each row's numbers with their targets, and a table at the end; DIR/llm.json is kept up to date. It
ends before --budget is spent and prints the results so far. On a CPU the models are tiny and nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arguments import count, positive
from bench.llm import rows as plan
from bench.llm.environments import Environment, environments, find_gemlet, write_trace
from bench.llm.programs import READY_S, Pool, Program
from bench.llm.rows import ALONE, PROGRAMS, ROWS, WAYS, Budget, Member, Row
from bench.llm.verdicts import Results, lines, table
from bench.machine import Machine, end_on_signals
from bench.report import Report, heading
from bench.runner import CONFIGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.llm.work import Work

SCRIPTS = Path(__file__).resolve().parents[1] / "programs"
OVERTIME = 25.0  # seconds until a program has reported after its window
PROBE = 4.0  # seconds: how long a request takes alone
FAILURES = 2  # of a way within a row, before it is left out


class Stopped(Exception):
    """The time is up."""


@dataclass
class Bench:
    machine: Machine
    places: Mapping[str, Environment]
    missing: Mapping[str, str]
    pool: Pool
    budget: Budget
    report: Report
    options: argparse.Namespace
    chosen: plan.Chosen
    client: list[str]  # bench/client and its options; empty: it is not to be had
    alone: dict[tuple[str, float | None], list[Work]] = field(default_factory=dict)
    everything: list[Results] = field(default_factory=list)
    logs: int = 0
    failed: bool = False

    def run(self) -> None:
        for number, row in enumerate(self.chosen.rows):
            ways = [way for way in self.chosen.ways if WAYS[way].environment in self.places]
            for way in set(self.chosen.ways) - set(ways):
                self.skip(f"{row.name}/{way}", self.missing[WAYS[way].environment])
            if any(PROGRAMS[member.program] is None for member in row.members) and not self.client:
                self.skip(row.name, "bench/client needs a GPU or the simulated machine")
                continue
            results = Results(row)
            self.everything.append(results)
            try:
                self.row(results, ways)
            except RuntimeError as error:
                self.fail(row.name, error)
            finally:
                self.show(results)
            later = plan.needed(self.chosen.rows[number + 1 :], ways)
            self.release([key for key in self.pool.programs if plan.member_of(key) not in later])

    def row(self, results: Results, ways: Sequence[str]) -> None:
        """Raises RuntimeError, Stopped."""
        row = results.row
        kept = {self.places[WAYS[way].environment].key(m) for way in ways for m in row.members if is_kept(m)}
        start = plan.starting(sum(not self.pool.has(key) for key in kept))
        if not self.budget.allows(start + row.cost(ways, 1, 1), time.monotonic(), row.name):
            raise Stopped
        print(f"\n== {row.name}: {row.title}", flush=True)
        began = time.monotonic()
        self.ensure([(self.places[WAYS[way].environment], m) for way in ways for m in row.members if is_kept(m)])
        took = time.monotonic() - began
        print(f"programs are ready after {took:.1f} s", flush=True)
        self.report.put("starts", {"row": row.name, "seconds": round(took, 2), "programs": len(self.pool.programs)})
        for member in {m.load: m for m in row.members}.values():
            results.alone[member.load] = self.by_itself(member, row)
        failures = dict.fromkeys(ways, 0)
        for repeat, way in plan.turns(ways, row.repeats):
            if failures[way] >= FAILURES:
                continue
            try:
                results.put(way, repeat, self.window(row, way, repeat, row.members))
            except RuntimeError as error:
                failures[way] += 1
                self.fail(f"{row.name}/{way}, repeat {repeat + 1}", error)

    def by_itself(self, member: Member, row: Row) -> list[Work]:
        """Windows of the program alone, without gemlet and MPS; measured once for all rows."""
        found = self.alone.setdefault(member.load, [])
        alone = Member(member.program, busy=member.busy)
        if alone.busy is not None and alone.busy < 1 and self.request_s(member) is None:
            probe = Member(member.program, busy=1.0)
            self.alone[probe.load] = [self.window(row, ALONE, 0, (probe,), PROBE)[probe.name]]
        while len(found) < row.windows_alone(self.chosen.alone):
            found.append(self.window(row, ALONE, len(found), (alone,))[alone.name])
        return found

    def request_s(self, member: Member) -> float | None:
        """How long a request of this service takes alone."""
        served = [r.served_s for work in self.alone.get((member.program, 1.0), []) for r in work.requests]
        return sum(served) / len(served) if served else None

    def window(
        self, row: Row, way: str, repeat: int, members: Sequence[Member], seconds: float | None = None
    ) -> dict[str, Work]:
        """Raises RuntimeError, Stopped."""
        seconds = seconds or row.seconds
        place = self.places["native" if way == ALONE else WAYS[way].environment]
        name = f"{row.name}/{way}, repeat {repeat + 1}"
        start = plan.starting(sum(not self.pool.has(place.key(member)) for member in members if is_kept(member)))
        needs = seconds + plan.LAUNCHES + start
        if not self.budget.allows(needs, time.monotonic(), name):
            raise Stopped
        self.ensure([(place, member) for member in members], seconds)
        place.prepare(members)
        keys = [place.key(member) for member in members]
        given = [plan.parameters(member, row, repeat, self.request_s(member)) for member in members]
        recorded: dict[str, Any] = {}
        during = [(seconds - 0.5, lambda: recorded.update(place.record(members)))] if place.gemlet else []
        overtime = max(2.0, min(OVERTIME, self.budget.left(time.monotonic()) - seconds + self.budget.reserve / 2))
        try:
            done = self.pool.window(keys, seconds, given, overtime, during)
        except RuntimeError:
            place.forget(keys)
            raise
        if self.options.trace and way == "gemlet":
            path = self.options.out / f"trace-{row.name}-{repeat + 1}.json"
            write_trace(place.env, place.key(members[0])[1], seconds, path)
        self.release([key for key, member in zip(keys, members, strict=True) if not is_kept(member)])
        if self.options.fresh and place.gemlet:
            self.release(keys)
        works = dict(zip((member.name for member in members), done, strict=True))
        self.tell(row, way, repeat, works, recorded)
        return works

    def tell(self, row: Row, way: str, repeat: int, works: Mapping[str, Work], recorded: Mapping[str, Any]) -> None:
        begin = min(row.settle, row.seconds / 2)
        rates = {name: work.rate(begin, work.seconds) for name, work in works.items()}
        rates_text = ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items())
        print(f"{way:<10} {repeat + 1}: {rates_text}", flush=True)
        for name, work in works.items():
            entry = {"row": row.name, "way": way, "repeat": repeat + 1, "program": name, "rate": round(rates[name], 3),
                     "seconds": work.seconds, "answers": work.digests[:3], "pace": work.pace()}  # fmt: skip
            if work.requests:
                entry["requests"] = [
                    [round(r.arrived, 3), r.ttft_ms, r.prefill_ms, round(r.per_token_ms, 3), max(r.token_ms)]
                    for r in work.requests
                ]
            self.report.put("windows", entry)
        if recorded:
            self.report.put("gemlet", {"row": row.name, "way": way, "repeat": repeat + 1, **recorded})

    def ensure(self, wanted: Sequence[tuple[Environment, Member]], seconds: float = 0.0) -> None:
        missing = [(place, member) for place, member in wanted if not self.pool.has(place.key(member))]
        fresh = {place.key(member): self.program(place, member, seconds) for place, member in missing}
        limit = min(READY_S, max(5.0, self.budget.left(time.monotonic())))
        try:
            self.pool.ensure(fresh, limit)
        except RuntimeError:
            for place in self.places.values():
                place.forget([key for key in fresh if not self.pool.has(key)])
            raise

    def program(self, place: Environment, member: Member, seconds: float) -> Program:
        self.logs += 1
        log = self.machine.workdir / f"program-{self.logs}"
        script = PROGRAMS[member.program]
        if script is None:
            units = log.with_suffix(".units")
            command = [*self.client, "--wait", "--seconds", f"{seconds:g}", "--file", str(units)]
            return Program(member.name, place.command(member, command), place.env, log, units)
        small = ["--device", "cpu", "--tiny"] if self.options.device == "cpu" else []
        command = [self.options.python, str(SCRIPTS / script[0]), *script[1:], "--wait", *small]
        return Program(member.name, place.command(member, command), place.env, log)

    def release(self, keys: Sequence[tuple[str, str]]) -> None:
        self.pool.release(keys)
        for place in self.places.values():
            place.forget(keys)

    def show(self, results: Results) -> None:
        if results.windows:
            for line in lines(results):
                self.report.add(line.what, line.value, line.target, note=line.note)

    def skip(self, what: str, why: str) -> None:
        print(f"skipped: {what}: {why}", flush=True)
        self.report.put("skipped", {"scenario": what, "why": why})

    def fail(self, what: str, error: Exception) -> None:
        self.failed = True
        print(f"failed: {what}: {error}", file=sys.stderr, flush=True)
        self.report.put("failed", {"scenario": what, "why": str(error)})


def is_kept(member: Member) -> bool:
    """Whether its process works for one window after another; bench/client does for one."""
    return PROGRAMS[member.program] is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for llm.json; made if it is not there")
    parser.add_argument("--rows", default="", help=f"of {','.join(ROWS)}")
    parser.add_argument("--ways", default="", help=f"of {','.join(WAYS)}")
    parser.add_argument("--quick", action="store_true", help=f"one repeat of {', '.join(plan.QUICK)}")
    parser.add_argument("--seconds", type=positive, help="length of each window in place of the row's own")
    parser.add_argument("--repeats", type=count, help="of each row, in place of its own")
    parser.add_argument("--alone", type=count, help="windows of each program alone; 3, and 1 with --quick")
    parser.add_argument(
        "--budget", type=positive, default=float("inf"), metavar="SECONDS", help="that all of it may take"
    )
    parser.add_argument("--fresh", action="store_true", help="gemlet's programs are started anew for each window")
    parser.add_argument("--trace", action="store_true", help="write down the turns of gemlet's windows, for Perfetto")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tiny models, measures nothing")
    parser.add_argument("--simulate", action="store_true", help="gemlet, MPS and bench/client on the simulated machine")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the frameworks")
    o = parser.parse_args()
    begin = time.monotonic()
    try:
        chosen = plan.choose(
            split(o.rows), split(o.ways), quick=o.quick, seconds=o.seconds, repeats=o.repeats, alone=o.alone
        )
    except ValueError as error:
        parser.error(str(error))
    if o.trace and not o.out:
        parser.error("--trace: needs --out")
    if o.simulate and o.device == "cuda":
        parser.error("frameworks need the CUDA runtime, which the simulated machine does not have: add --device cpu")
    if o.device == "cpu" and not o.simulate:
        chosen = plan.without_gemlet(chosen)
    find_gemlet()
    end_on_signals()
    if o.out:
        o.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as workdir:
        machine = Machine(simulate=o.simulate, workdir=Path(workdir))
        about: dict[str, Any] = {**machine.describe(), "command": " ".join(sys.argv[1:])}
        if o.device == "cpu":
            about |= {"device": "none: on a CPU nothing is measured", "simulated": True}
        report = Report(about, o.out / "llm.json" if o.out else None)
        client: list[str] = []
        if o.device == "cuda" or o.simulate:
            config = CONFIGS[plan.CLIENT_CONFIG]
            spin = machine.spin(float(config[config.index("--kernel-us") + 1]))
            client = [str(machine.client), "work", *config, *spin]
        budget = Budget(o.budget, begin)
        with environments(machine.env, chosen.ways, simulate=o.simulate) as (places, missing), Pool() as pool:
            bench = Bench(machine, places, missing, pool, budget, report, o, chosen, client)
            try:
                bench.run()
            except Stopped:
                bench.skip(budget.refused[-1], f"and all after it: {o.budget:.0f} s are nearly over")
            finally:
                print(f"\n{heading(report.about)}\n{table(bench.everything)}", flush=True)
        met = [row.verdict for row in report.rows]
        print(f"\n{met.count('met')} targets met, {met.count('missed')} missed, {time.monotonic() - begin:.0f} s")
    return 1 if bench.failed else 0


def split(names: str) -> list[str]:
    return names.split(",") if names else []


if __name__ == "__main__":
    raise SystemExit(main())
