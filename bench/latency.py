"""What a latency-critical program waits beside a busy neighbour, and what the neighbour keeps.

    python -m bench.latency [--simulate] [--seconds 10] [--only NEIGHBOUR,...] [--ways WAY,...] [--out DIR]

Prints a table, writes JSON. The latency program takes requests of 200 us at 100/s (Poisson, the same arrivals in every
row) and works on one at a time; latency counts from arrival to completion. Each row is one way to share the device with
one neighbour. On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.latency_table import Check, Measured, arrived_after, checks, entry, table
from bench.machine import Client, Sharing
from bench.mps import MpsError
from bench.report import heading
from bench.runner import Bench, main

if TYPE_CHECKING:
    import argparse

REQUESTS = ["latency", "--kernel-us", "200", "--rate", "100", "--seed", "1"]
WARM_UP = 1.0  # seconds of each run that are left out: the hook learns how long kernels take


@dataclass(frozen=True)
class Way:
    """One way to run the two programs. ``policy`` None: without gemlet."""

    note: str
    mps: bool = False
    policy: str | None = None
    priority: str = "best-effort"  # of the neighbour
    sm: float = 1.0  # of the neighbour


WAYS: dict[str, Way] = {
    "slicing": Way("the driver's time slicing"),
    "gemlet": Way("gemlet", policy="fair"),
    "gemlet-normal": Way("gemlet, neighbour normal", policy="fair", priority="normal"),
    "gemini": Way("gemlet, policy gemini", policy="gemini", priority="normal"),
    "fifo": Way("gemlet, policy fifo", policy="fifo", priority="normal"),
    "mps": Way("MPS", mps=True),
    "mps-gemlet": Way("MPS and gemlet", mps=True, policy="fair"),
    "mps-gemlet-normal": Way("MPS and gemlet, neighbour normal", mps=True, policy="fair", priority="normal"),
    "mps-gemlet-sm": Way("MPS and gemlet, neighbour on 90 % of the SMs", mps=True, policy="fair", sm=0.9),
}
SOLO: dict[str, Way] = {
    "alone": Way("alone"),
    "alone-gemlet": Way("alone, gemlet", policy="fair"),
    "alone-mps": Way("alone, MPS", mps=True),
}
BASE = ["slicing", "gemlet", "mps", "mps-gemlet", "mps-gemlet-sm"]


@dataclass(frozen=True)
class Neighbour:
    config: str  # of runner.CONFIGS
    note: str
    ways: list[str]


NEIGHBOURS: dict[str, Neighbour] = {
    "100us": Neighbour("batches of 100x100us", "batches of 100 kernels of 100 us", list(WAYS)),
    "1ms": Neighbour("1ms", "kernels of 1 ms", [*BASE, "gemlet-normal"]),
    "graph": Neighbour("graph of 200x100us", "graphs of 20 ms", BASE),
    "full": Neighbour("batches of 100x100us, full", "the first, but every thread slot taken", BASE),
}


class LatencyBench(Bench):
    name: ClassVar[str] = "latency"
    scenarios: ClassVar[list[str]] = ["alone", *NEIGHBOURS]
    seconds: ClassVar[float] = 10.0
    ways: tuple[str, ...] = (*SOLO, *WAYS)
    base: Measured | None = None  # the program alone

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ways", default=",".join(cls.ways), help=f"of {','.join(cls.ways)}")

    def chose(self, options: argparse.Namespace) -> None:
        self.ways = tuple(options.ways.split(","))
        if unknown := set(self.ways) - {*SOLO, *WAYS}:
            raise SystemExit(f"error: no way {', '.join(sorted(unknown))}; there are {', '.join([*SOLO, *WAYS])}")

    def scenario(self, name: str) -> None:
        if self.base is None:
            self.base = self.row(None, "alone", SOLO["alone"])
        if name == "alone":
            for key, way in SOLO.items():
                if key != "alone" and key in self.ways:
                    self.row_or_skip(None, key, way)
            return
        rate = self.rate(NEIGHBOURS[name].config)
        slicing = None
        for key in NEIGHBOURS[name].ways:
            if key in self.ways:
                got = self.row_or_skip(name, key, WAYS[key], rate, slicing)
                slicing = got if key == "slicing" else slicing

    def row_or_skip(
        self, neighbour: str | None, key: str, way: Way, rate: float = 1.0, slicing: Measured | None = None
    ) -> Measured | None:
        """The row, or None, said and written down, where MPS is not to be had."""
        label = f"{neighbour or 'alone'}/{key}"
        try:
            if not way.mps:
                return self.row(neighbour, key, way, rate, slicing)
            with self.machine.under_mps():
                return self.row(neighbour, key, way, rate, slicing)
        except MpsError as error:
            print(f"skipped: {label}: {error}", flush=True)
            self.report.put("skipped", {"scenario": label, "why": str(error)})
        except (RuntimeError, subprocess.SubprocessError) as error:
            self.failed = True
            print(f"failed: {label}: {error}", file=sys.stderr, flush=True)
            self.report.put("failed", {"scenario": label, "why": str(error)})
        return None

    def row(
        self, neighbour: str | None, key: str, way: Way, rate: float = 1.0, slicing: Measured | None = None
    ) -> Measured:
        requests = Client(self.scaled(REQUESTS), "requests")
        clients = [requests]
        if neighbour:
            clients.append(Client(self.work(NEIGHBOURS[neighbour].config), "neighbour"))
        if way.policy:
            with Sharing(self.machine, way.policy) as sharing:
                if way.policy == "gemini":  # it has no classes, so the requests are promised more than they need
                    sharing.group("requests", min=0.5)
                    sharing.group("neighbour", min=0.5)
                else:
                    sharing.group("requests", priority="latency")
                    sharing.group("neighbour", priority=way.priority, sm=way.sm)
                self.machine.run(clients, sharing, self.length)
        else:
            self.machine.run(clients, None, self.length)
        kept = None
        if neighbour:
            span = self.length - WARM_UP
            kept = clients[1].work_between(WARM_UP, self.length) / (span * rate)
        got = Measured.of(arrived_after(requests, WARM_UP), kept, int(requests.result["unserved"]))
        found = checks(neighbour, key, got, self.base, slicing) if self.base else []
        self.show(f"{neighbour or 'alone'}/{key}", got, found)
        self.report.put("latencies", entry(neighbour, key, way.note, got, found))
        return got

    def show(self, label: str, got: Measured, found: list[Check]) -> None:
        kept = "" if got.kept is None else f", neighbour keeps {got.kept:.3f}"
        print(f"{label:<26} p50 {got.p50:.0f} us, p99 {got.p99:.0f} us, largest {got.largest:.0f} us{kept}", flush=True)
        for what, value, target in found:
            self.report.add(f"{label}: {what}", value, target)

    def finish(self) -> None:
        print(f"\n{heading(self.report.about)}")
        print("".join(f"{key}: {n.note}\n" for key, n in NEIGHBOURS.items()))
        print(table(self.report.parts.get("latencies", [])), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(LatencyBench, __doc__ or ""))
