"""What a latency-critical program waits beside a busy neighbour, and what the neighbour keeps.

    python bench/latency.py [--simulate] [--seconds 12] [--only NEIGHBOUR,...] [--ways WAY,...] [--out DIR]

Prints a table, writes JSON. The latency program takes requests of 200 us at 100/s (Poisson, the same arrivals in every
row) and works on one at a time; latency counts from arrival to completion. Each row is one way to share the device with
one neighbour. On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from machine import Client, Sharing
from mps import MpsError
from quantiles import distribution, quantile
from report import grid, heading, meets
from runner import Bench, main

if TYPE_CHECKING:
    import argparse

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
    latencies: list[float]

    @classmethod
    def of(cls, latencies: list[float], kept: float | None, unserved: int) -> Measured:
        p50, p99, p999 = (quantile(latencies, q) for q in (0.5, 0.99, 0.999))
        return cls(p50, p99, p999, max(latencies), kept, len(latencies), unserved, latencies)

    def as_dict(self) -> dict[str, object]:
        """For JSON: in place of the latencies their distribution."""
        return {
            "p50_us": self.p50, "p99_us": self.p99, "p999_us": self.p999, "largest_us": self.largest,
            "kept": self.kept if self.kept is None else round(self.kept, 4),
            "requests": self.requests, "unserved": self.unserved, "distribution_us": distribution(self.latencies),
        }  # fmt: skip


def arrived_after(requests: Client, begin: float) -> list[float]:
    """Latencies in microseconds of the requests that arrived ``begin`` seconds after the start or later."""
    both = zip(requests.done.entries, requests.latencies_us, strict=True)
    return [latency for (at, _), latency in both if at - latency / 1e6 >= begin]


def checks(
    neighbour: str | None, way: str, got: Measured, alone: Measured, slicing: Measured | None
) -> list[tuple[str, float, str]]:
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
    scenarios: ClassVar[list[str]] = ["alone", *NEIGHBOURS]
    seconds: ClassVar[float] = 12.0
    ways: tuple[str, ...] = (*SOLO, *WAYS)

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ways", default=",".join(cls.ways), help=f"of {','.join(cls.ways)}")

    def chose(self, options: argparse.Namespace) -> None:
        self.ways = tuple(options.ways.split(","))
        if unknown := set(self.ways) - {*SOLO, *WAYS}:
            raise SystemExit(f"error: no way {', '.join(sorted(unknown))}; there are {', '.join([*SOLO, *WAYS])}")
        self.table: list[list[str]] = []
        self.base: Measured | None = None

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
        except RuntimeError as error:
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
        self.show(neighbour, key, way, got, found)
        self.report.put("latencies", {
            "neighbour": neighbour, "way": key, "words": way.words, **got.as_dict(),
            "targets": [[what, round(value, 4), target, meets(value, target)] for what, value, target in found],
        })  # fmt: skip
        return got

    def show(
        self, neighbour: str | None, key: str, way: Way, got: Measured, found: list[tuple[str, float, str]]
    ) -> None:
        label = f"{neighbour or 'alone'}/{key}"
        kept = "" if got.kept is None else f", neighbour keeps {got.kept:.3f}"
        print(f"{label:<26} p50 {got.p50:.0f} us, p99 {got.p99:.0f} us, largest {got.largest:.0f} us{kept}", flush=True)
        for what, value, target in found:
            self.report.add(f"{label}: {what}", value, target)
        self.table.append(
            cells(f"{neighbour or 'alone'}: {way.words}" if neighbour else way.words, got, self.base, found)
        )

    def finish(self) -> None:
        print(f"\n{heading(self.report.about)}")
        print(
            "".join(f"{key}: {n.words}\n" for key, n in NEIGHBOURS.items()) + f"\n{grid(HEAD, self.table)}", flush=True
        )


if __name__ == "__main__":
    raise SystemExit(main(LatencyBench, __doc__ or ""))
