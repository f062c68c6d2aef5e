"""Why CUDA graphs of GoogLeNet gave other results than the model under MPS: each cause that could be, told apart.

python -m bench.graph_check [--seconds 55] [--cases plain,mps-100,mps-47,mps-47-busy] [-o RESULT.json]

plain        without MPS
mps-100      under MPS, all SMs
mps-47       under MPS, 46.67 % of the SMs: what the plan gave it when it failed; cuDNN and cuBLAS see these SMs alone
mps-47-busy  the same beside VGG-16 and SSD-MobileNet on 33 and 20 %, as then

In each case bench.graph_probe asks: is the model twice the same; does a capture as `gemlet serve` makes it succeed; in
which of several captures and replays results differ, and under which settings; whether they rest on memory that nobody
wrote; which module is the first to differ; which kernels ran. What follows from that is said at the end. Processes
import torch side by side and use the GPU one after the other. Bounded: what takes longer is killed and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench import arguments, graph_causes
from bench.own_mps import mps_of_gemlet
from gemlet.membership import PERCENTAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "2"}  # as executors of `mps` have it
CASES: dict[str, str | None] = {"plain": None, "mps-100": "100", "mps-47": "46.6667", "mps-47-busy": "46.6667"}
NEIGHBOURS = {"vgg16": "33.3333", "ssd-mobilenetv1": "20"}
START_S = 4.0  # of a case: context, weights, cuDNN's libraries
END_S = 4.0  # for MPS to stop


@dataclass
class Process:
    """A started process that waits for its turn; ``rows``: what it said."""

    popen: subprocess.Popen[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with contextlib.suppress(ValueError):
                self.rows.append(json.loads(line))

    def go(self) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write("go\n")
            self.popen.stdin.flush()

    def end(self, patience: float = 0.0) -> str:
        """Why it ended, or "" where it was done."""
        try:
            code = self.popen.wait(max(0.0, patience))
            return f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return "killed: its time was over"
        finally:
            self.reader.join(2.0)


def started(env: Mapping[str, str], *arguments: str) -> Process:
    command = [sys.executable, "-m", "bench.graph_probe", *arguments]
    return Process(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


@contextlib.contextmanager
def environments(cases: list[str]) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """By case; with an MPS of its own where one needs it."""
    plain = os.environ | QUEUES
    with contextlib.ExitStack() as ends:
        under = ends.enter_context(mps_of_gemlet()) if any(CASES[case] for case in cases) else {}
        yield {case: plain if CASES[case] is None else plain | under | {PERCENTAGE: str(CASES[case])} for case in cases}


def measured(cases: list[str], seconds: float) -> list[dict[str, Any]]:
    """The rows of all cases, in their order."""
    end = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    with environments(cases) as env, contextlib.ExitStack() as ends:
        end -= END_S
        each = max(2.0, (end - time.monotonic() - 6.0) / len(cases) - START_S)  # 6 s: torch's import
        probes = {case: started(env[case], case, f"{each:.1f}") for case in cases}
        beside = {
            case: [started({**env[case], PERCENTAGE: share}, "--work", m, "60") for m, share in NEIGHBOURS.items()]
            for case in cases if case.endswith("busy")
        }  # fmt: skip
        for process in [*probes.values(), *(one for those in beside.values() for one in those)]:
            ends.callback(process.end)
        for place, (case, probe) in enumerate(probes.items()):
            for neighbour in beside.get(case, ()):
                neighbour.go()
            probe.go()
            slot = (end - time.monotonic()) / (len(cases) - place)
            why = probe.end(slot)
            rows += [*probe.rows, *([{"case": case, "test": "the end", "error": why}] if why else [])]
            for neighbour in beside.get(case, ()):
                neighbour.end()
                rows += [{"case": case, **said} for said in neighbour.rows]
    return rows


def _case(text: str) -> list[str]:
    cases = text.split(",")
    for case in cases:
        if case not in CASES:
            raise argparse.ArgumentTypeError(f"{case!r} is none of {', '.join(CASES)}")
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=arguments.positive, default=55.0, help="in all; default 55")
    parser.add_argument("--cases", type=_case, default=",".join(CASES), help="default: all")
    parser.add_argument("-o", "--output", type=arguments.output)
    given = parser.parse_args()
    rows = measured(given.cases, given.seconds)
    output: Path | None = given.output
    if output is not None:
        output.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    print("\n".join([*graph_causes.table(rows), "", *graph_causes.causes(rows)]))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
