"""PyTorch training beside PyTorch inference: what requests wait, what training keeps, whether the bits are the same.

    python -m bench.training [--seconds 10] [--only eager,graph] [--ways WAY,...] [--out DIR]
    python -m bench.training --cpu-check --seconds 3      without GPU and gemlet: checks the scripts, measures nothing

Training is a transformer of about 110 million parameters in bfloat16, eager or as one CUDA graph a step
(bench/torch_programs/train.py); inference another one that answers at 20/s, Poisson (bench/torch_programs/infer.py).
Losses and answers are compared bit by bit with those of each program alone and without gemlet. The simulated machine
has no CUDA runtime, so PyTorch does not run on it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bench.latency import BASE, WAYS, Way
from bench.latency_table import Measured, arrived_after, entry, table
from bench.machine import Client, Sharing
from bench.mps import MpsError
from bench.report import heading
from bench.runner import Bench, main

if TYPE_CHECKING:
    import argparse

PROGRAMS = Path(__file__).resolve().parent / "torch_programs"
START_LIMIT = 180.0  # seconds: PyTorch's import, the model, the graph
WARM_UP = 1.0  # seconds of each run that are left out
UNMANAGED = Way("alone")


def same(losses: list[str], reference: list[str]) -> bool:
    """Whether the steps that both took have the same bits. Runs may differ in how far they came."""
    both = min(len(losses), len(reference))
    return both > 0 and losses[:both] == reference[:both]


class TrainingBench(Bench):
    name: ClassVar[str] = "training"
    scenarios: ClassVar[list[str]] = ["eager", "graph"]
    seconds: ClassVar[float] = 10.0

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ways", default=",".join(BASE), help=f"of {','.join(BASE)}")
        parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")
        parser.add_argument(
            "--cpu-check", action="store_true", help="tiny models on the CPU, unmanaged: checks the scripts"
        )

    def chose(self, options: argparse.Namespace) -> None:
        self.ways = options.ways.split(",")
        if unknown := set(self.ways) - set(BASE):
            raise SystemExit(f"error: no way {', '.join(sorted(unknown))}; there are {', '.join(BASE)}")
        self.python = options.python
        self.check = options.cpu_check
        if self.check:
            self.ways = ["slicing"]
            self.report.about["device"] = "none: --cpu-check measures nothing"
        self.alone: Measured | None = None
        self.digest: object = None

    def program(self, name: str, group: str, *args: str) -> Client:
        small = ["--device", "cpu", "--tiny"] if self.check else []
        return Client([*args, *small], group, program=[self.python, str(PROGRAMS / f"{name}.py")])

    def scenario(self, name: str) -> None:
        if self.machine.simulate:
            why = "PyTorch needs the CUDA runtime, which the simulated machine does not have"
            print(f"skipped: {name}: {why}", flush=True)
            self.report.put("skipped", {"scenario": name, "why": why})
            return
        if self.check and name == "graph":
            print("skipped: graph: a CPU has no CUDA graphs", flush=True)
            return
        if self.alone is None:
            requests = self.program("infer", "requests")
            self.machine.run([requests], None, self.length, start_limit=START_LIMIT)
            self.alone = Measured.of(arrived_after(requests, WARM_UP), None, int(requests.result["unserved"]))
            self.digest = requests.result["digest"]
            self.show("inference", "alone", UNMANAGED, self.alone, {"answers": requests.result["different"] == 0})
        training, reference = self.train(name)
        self.machine.run([training], None, self.length, start_limit=START_LIMIT)
        rate = self.pace(training)
        losses = reference.read_text().split()
        parameters = training.result["parameters"] / 1e6
        self.report.add(f"{name}: steps a second alone", rate, note=f"{parameters:.1f} million parameters")
        for key in self.ways:
            try:
                if WAYS[key].mps:
                    with self.machine.under_mps():
                        self.beside(name, key, rate, losses)
                else:
                    self.beside(name, key, rate, losses)
            except MpsError as error:
                print(f"skipped: {name}/{key}: {error}", flush=True)
                self.report.put("skipped", {"scenario": f"{name}/{key}", "why": str(error)})
            except (RuntimeError, subprocess.SubprocessError) as error:
                self.failed = True
                print(f"failed: {name}/{key}: {error}", file=sys.stderr, flush=True)
                self.report.put("failed", {"scenario": f"{name}/{key}", "why": str(error)})

    def train(self, name: str) -> tuple[Client, Path]:
        path = self.machine.workdir / "losses"
        path.unlink(missing_ok=True)
        graph = ["--graph"] if name == "graph" else []
        return self.program("train", "training", *graph, "--losses", str(path)), path

    def pace(self, training: Client) -> float:
        """Steps a second after the warm-up."""
        return training.work_between(WARM_UP, self.length) / (self.length - WARM_UP)

    def beside(self, name: str, key: str, rate: float, reference: list[str]) -> None:
        way = WAYS[key]
        training, losses = self.train(name)
        requests = self.program("infer", "requests")
        if way.policy:
            with Sharing(self.machine, way.policy) as sharing:
                sharing.group("requests", priority="latency")
                sharing.group("training", priority=way.priority, sm=way.sm)
                self.machine.run([requests, training], sharing, self.length, start_limit=START_LIMIT)
                for group, what in sharing.found().items():
                    print(f"{name}/{key}: {group}: {what}")
        else:
            self.machine.run([requests, training], None, self.length, start_limit=START_LIMIT)
        got = Measured.of(
            arrived_after(requests, WARM_UP), self.pace(training) / rate, int(requests.result["unserved"])
        )
        identical = {
            "losses": same(losses.read_text().split(), reference),
            "answers": requests.result["digest"] == self.digest and requests.result["different"] == 0,
        }
        self.show(name, key, way, got, identical)

    def show(self, name: str, key: str, way: Way, got: Measured, identical: dict[str, bool]) -> None:
        kept = "" if got.kept is None else f", training keeps {got.kept:.3f}"
        print(f"{name}/{key}: p50 {got.p50:.0f} us, p99 {got.p99:.0f} us{kept}", flush=True)
        for what, equal in identical.items():
            # On a part of the multiprocessors cuBLAS may choose other kernels, with or without gemlet.
            target = "-" if way.sm < 1 else ">= 1"
            self.report.add(f"{name}/{key}: {what} bit-identical to those alone", float(equal), target)
        beside = f"training {name}" if got.kept is not None else None
        self.report.put("latencies", entry(beside, key, way.note, got) | {"identical": identical})

    def finish(self) -> None:
        if entries := self.report.parts.get("latencies"):
            print(f"\n{heading(self.report.about)}\n{table(entries)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(TrainingBench, __doc__ or ""))
