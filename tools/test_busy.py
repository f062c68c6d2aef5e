"""Runs a command several times while stress-ng keeps every processor busy, and prints the outcome of each run.

.venv/bin/python tools/test_busy.py --runs 10 -- make test

A test that depends on the load of the machine fails here. The output of each run goes to build/busy/run-N.log.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGS = Path(__file__).resolve().parents[1] / "build/busy"
SUMMARY = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)  # pytest's last line


@contextlib.contextmanager
def busy(workers: int) -> Iterator[None]:
    """stress-ng beside what runs meanwhile; 0 workers: nothing."""
    if not workers:
        yield
        return
    stress = subprocess.Popen(["stress-ng", "--cpu", str(workers), "--quiet"])
    try:
        yield
        if stress.poll() is not None:
            raise SystemExit(f"error: stress-ng ended early with {stress.returncode}; the runs were not beside it")
    finally:
        stress.terminate()
        stress.wait()


def run(command: list[str], log: Path) -> tuple[int, float, float, str]:
    """Exit code, seconds, seconds of processor time, and pytest's summary."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summaries = SUMMARY.findall(log.read_text(errors="replace"))
    return code, time.monotonic() - began, used, summaries[-1] if summaries else "no summary"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4, help="of stress-ng --cpu; 0: an idle machine")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if args.workers and shutil.which("stress-ng") is None:
        print("error: stress-ng is not installed\nhint: sudo apt-get install stress-ng", file=sys.stderr)
        return 1
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"{'RUN':>3}  {'EXIT':>4}  {'WALL s':>7}  {'CPU s':>7}  SUMMARY", flush=True)
    failed = 0
    for number in range(1, args.runs + 1):
        log = LOGS / f"run-{number}.log"
        with busy(args.workers):
            code, wall, used, summary = run(args.command, log)
        failed += code != 0
        print(f"{number:>3}  {code:>4}  {wall:>7.0f}  {used:>7.0f}  {summary}", flush=True)
    print(f"{args.runs - failed} of {args.runs} runs passed beside stress-ng --cpu {args.workers}; logs in {LOGS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
