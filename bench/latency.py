"""What a latency-critical program waits beside a busy neighbour, and what the neighbour keeps. Prints a table, writes JSON.

    python bench/latency.py [--simulate] [--seconds 12] [--only NEIGHBOUR,...] [--ways WAY,...] [--out DIR]

The latency program takes requests of 200 us at 100/s (Poisson, the same arrivals in every row) and works on one at a time;
latency counts from arrival to completion. Each row is one way to share the device with one neighbour. On the simulated
machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from machine import Client, Sharing
from mps import MpsError
from quantiles import distribution, quantile
from report import grid, meets
from runner import Bench, main

REQUESTS = ["latency", "--kernel-us", "200", "--rate", "100", "--seed", "1"]
WARM_UP = 1.0  # seconds of each run that are left out: the hook learns how long kernels take


@dataclass(frozen=True)
class Way:
    """One way to run the two programs. ``policy`` None: without gemlet."""

    words: str
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
    words: str
    ways: list[str]


NEIGHBOURS: dict[str, Neighbour] = {
    "100us": Neighbour("batches of 100x100us", "batches of 100 kernels of 100 us", list(WAYS)),
    "1ms": Neighbour("1ms", "kernels of 1 ms", [*BASE, "gemlet-normal"]),
    "graph": Neighbour("graph of 200x100us", "graphs of 20 ms", BASE),
    "full": Neighbour("batches of 100x100us, full", "the first, but every thread slot taken", BASE),
}


@dataclass(frozen=True)
class Measured:
    """Latencies in microseconds, and what the neighbour kept of its rate alone (None: there was none)."""

    p50: float
    p99: float
    p999: float
    largest: float
    kept: float | None
    requests: int
    unserved: int

    @classmethod
    def of(cls, latencies: list[float], kept: float | None, unserved: int) -> Measured:
        p50, p99, p999 = (quantile(latencies, q) for q in (0.5, 0.99, 0.999))
        return cls(p50, p99, p999, max(latencies), kept, len(latencies), unserved)


def checks(neighbour: str, way: str, got: Measured, alone: Measured, slicing: Measured | None) -> list[tuple[str, float, str]]:
    """(what, value, target) of the targets that are set for this row. Pure."""
    found: list[tuple[str, float, str]] = []
    mps, plain = way in ("mps-gemlet", "mps-gemlet-sm"), way == "gemlet"
    if neighbour == "100us" and (mps or plain):
        found = [
            ("p99 / alone", got.p99 / alone.p99, "<= 1.2" if mps else "<= 1.6"),
            ("p50 / alone", got.p50 / alone.p50, "<= 1.25" if mps else "<= 1.8"),
            ("neighbour keeps", got.kept or 0.0, ">= 0.93" if mps else ">= 0.85"),
        ]
    if neighbour == "1ms" and plain:
        found = [("p99 less alone, us", got.p99 - alone.p99, "<= 2500")]
    if neighbour == "graph" and plain and slicing:
        found = [("p99 / time slicing", got.p99 / slicing.p99, "<= 1")]
    return found


HEAD = ["", "p50 us", "p99 us", "p99.9 us", "max us", "p50/alone", "p99/alone", "neighbour keeps", "targets"]


def cells(words: str, got: Measured, alone: Measured | None, found: list[tuple[str, float, str]]) -> list[str]:
    ratios = [f"{got.p50 / alone.p50:.2f}", f"{got.p99 / alone.p99:.2f}"] if alone else ["-", "-"]
    verdicts = [f"{what} {target}: {'met' if meets(value, target) else 'missed'}" for what, value, target in found]
    late = [f"{got.unserved} of {got.requests} never served"] if got.unserved else []
    return [
        words, *(f"{v:.0f}" for v in (got.p50, got.p99, got.p999, got.largest)), *ratios,
        "-" if got.kept is None else f"{got.kept:.3f}", "; ".join([*verdicts, *late]) or "-",
    ]  # fmt: skip


class LatencyBench(Bench):
    name: ClassVar[str] = "latency"
    scenarios: ClassVar[list[str]] = ["alone", "n100us", "n1ms", "graph", "full"]
    seconds: ClassVar[float] = 12.0
    ways: ClassVar[list[str]] = [*SOLO, *WAYS]

    def alone(self) -> None:
        """The latency program without a neighbour."""
        self.table: list[list[str]] = []
        self.base: Measured | None = None
        for key, way in SOLO.items():
            self.row("alone", key, way, None)

    def n100us(self) -> None:
        self.beside("100us")

    def n1ms(self) -> None:
        self.beside("1ms")

    def graph(self) -> None:
        self.beside("graph")

    def full(self) -> None:
        self.beside("full")
