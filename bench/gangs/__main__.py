"""Jobs whose ranks wait for each other on several devices: with gangs, without, by time slicing, and alone.

    python -m bench.gangs --simulate [--seconds N] [--only TEXT]      on virtual devices, in virtual time
    python -m bench.gangs --out DIR [--cases NAME,...] [--budget S]   on GPUs, by torchrun, with PyTorch
    python -m bench.gangs --device cpu --cases ddp --repeats 1        checks the script only

Ways of a case alternate; speeds are against the same job alone in the same run. DIR/gangs.json is kept up to date.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.arguments import count, positive
from bench.gangs import live, virtual
from bench.gangs.cases import CASES, WAYS
from bench.llm.environments import find_gemlet, own_daemon
from bench.llm.programs import Pool
from bench.llm.rows import Budget
from bench.machine import Machine, end_on_signals
from bench.report import Report, heading

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="virtual devices: measures no GPU")
    parser.add_argument("--only", metavar="TEXT", default="", help="with --simulate: cases whose names have it")
    parser.add_argument("--seconds", type=positive, help="of a window, in place of the case's own; with --simulate 3.5")
    parser.add_argument("--cases", default=",".join(CASES), help="in this order: %(default)s")
    parser.add_argument("--ways", default=",".join(WAYS), help="%(default)s")
    parser.add_argument("--repeats", type=count, default=5, help="of each way (%(default)s)")
    parser.add_argument("--devices", type=count, default=2, help="that a job uses (%(default)s)")
    parser.add_argument(
        "--budget", type=positive, default=float("inf"), metavar="SECONDS", help="that all of it may take"
    )
    parser.add_argument("--out", type=Path, help="folder for gangs.json; made if it is not there")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tiny models, without gemlet")
    parser.add_argument("--trace", action="store_true", help="write down each window's turns in DIR, for Perfetto")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the frameworks")
    o = parser.parse_args(arguments)
    if o.simulate:
        if (o.seconds or 3.5) < 1.5:
            parser.error("--seconds: expected 1.5 or more")
        virtual.show(o.seconds or 3.5, o.only)
        return 0
    if o.trace and not o.out:
        parser.error("--trace: needs --out")
    o.ways = o.ways.split(",")
    for given, known in ((names := o.cases.split(","), CASES), (o.ways, WAYS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    if o.device == "cpu":
        o.ways = ["slicing"]
    cases = [replace(CASES[name], seconds=o.seconds) if o.seconds else CASES[name] for name in names]
    return measure(o, [case for case in cases if any(way in o.ways for way in case.ways)])


def measure(o: argparse.Namespace, cases: Sequence[live.Case]) -> int:
    begin = time.monotonic()
    find_gemlet()
    end_on_signals()
    if o.out:
        o.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as workdir:
        machine = Machine(simulate=False, workdir=Path(workdir))
        machine.env = live.no_multicast(machine.env)
        about = {**machine.describe(), "devices": str(o.devices), "command": " ".join(sys.argv[1:])}
        if o.device == "cpu":
            about |= {"device": "none: on a CPU nothing is measured", "simulated": True}
        report = Report(about, o.out / "gangs.json" if o.out else None)
        needs_client = o.device == "cuda" and any(job.kind == "single" for case in cases for job in case.jobs)
        client = live.client_command(machine) if needs_client else []
        budget = Budget(o.budget, begin)
        with own_daemon(machine.env, simulate=False) as env, Pool() as pool:
            bench = live.Live(machine, env, pool, budget, report, o, client)
            try:
                bench.run(cases)
            except live.Stopped:
                print(f"left out: {budget.refused[-1]} and all after it: {o.budget:.0f} s are nearly over", flush=True)
            finally:
                print(f"\n{heading(report.about)}\n{bench.show()}", flush=True)
        verdicts = [row.verdict for row in report.rows]
        met, missed = verdicts.count("met"), verdicts.count("missed")
        print(f"\n{met} targets met, {missed} missed, {time.monotonic() - begin:.0f} s")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
