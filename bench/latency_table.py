"""Rows of latencies: what was measured, which targets it has, the table. Pure; made from what the JSON files hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.quantiles import distribution, quantile
from bench.report import grid, meets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.machine import Client

Check = tuple[str, float, str]  # what, value, target
Entry = dict[str, Any]
HEAD = ["", "p50 us", "p99 us", "p99.9 us", "max us", "p50/alone", "p99/alone", "neighbour keeps", ""]


@dataclass(frozen=True)
class Measured:
    """Latencies in microseconds, and what the neighbour kept of its rate alone (None: there was none)."""

    p50: float
    p99: float
    p999: float
    largest: float
    kept: float | None
    unserved: int
    latencies: list[float]

    @classmethod
    def of(cls, latencies: list[float], kept: float | None, unserved: int) -> Measured:
        p50, p99, p999 = (quantile(latencies, q) for q in (0.5, 0.99, 0.999))
        return cls(p50, p99, p999, max(latencies), kept, unserved, latencies)


def arrived_after(requests: Client, begin: float) -> list[float]:
    """Latencies in microseconds of the requests that arrived ``begin`` seconds after the start or later."""
    both = zip(requests.done.entries, requests.latencies_us, strict=True)
    return [latency for (at, _), latency in both if at - latency / 1e6 >= begin]


def checks(neighbour: str | None, way: str, got: Measured, alone: Measured, slicing: Measured | None) -> list[Check]:
    """The targets that are set for this row."""
    # None for a neighbour on a part of the multiprocessors: what it keeps is bounded by that part.
    mps, plain = way == "mps-gemlet", way == "gemlet"
    if neighbour == "100us" and (mps or plain):
        return [
            ("p99 / alone", got.p99 / alone.p99, "<= 1.2" if mps else "<= 1.6"),
            ("p50 / alone", got.p50 / alone.p50, "<= 1.25" if mps else "<= 1.8"),
            ("neighbour keeps", got.kept or 0.0, ">= 0.93" if mps else ">= 0.85"),
        ]
    if neighbour == "1ms" and plain:
        return [("p99 less alone, us", got.p99 - alone.p99, "<= 2500")]
    if neighbour == "graph" and plain and slicing:
        return [("p99 / time slicing", got.p99 / slicing.p99, "<= 1")]
    return []


def entry(neighbour: str | None, way: str, note: str, got: Measured, found: Sequence[Check] = ()) -> Entry:
    """A row for JSON."""
    return {
        "neighbour": neighbour, "way": way, "words": note,
        "p50_us": got.p50, "p99_us": got.p99, "p999_us": got.p999, "largest_us": got.largest,
        "kept": None if got.kept is None else round(got.kept, 4),
        "requests": len(got.latencies), "unserved": got.unserved,
        "targets": [[what, round(value, 4), target, meets(value, target)] for what, value, target in found],
        "distribution_us": distribution(got.latencies),
    }  # fmt: skip


def table(entries: Sequence[Entry]) -> str:
    """The rows as text; ratios are to the row of the program alone."""
    alone = next((e for e in entries if e["way"] == "alone"), None)
    return grid(HEAD, [cells(e, alone) for e in entries], left=(0, -1))


def cells(row: Entry, alone: Entry | None) -> list[str]:
    notes = [f"{what} {target}: {'met' if met else 'missed'}" for what, _, target, met in row["targets"]]
    if row["unserved"]:
        notes.append(f"{row['unserved']} never served")
    notes += [f"{what} {'identical' if same else 'DIFFERENT'}" for what, same in row.get("identical", {}).items()]
    return [
        f"{row['neighbour']}: {row['words']}" if row["neighbour"] else row["words"],
        *(f"{row[key]:.0f}" for key in ("p50_us", "p99_us", "p999_us", "largest_us")),
        *(f"{row[key] / alone[key]:.2f}" if alone else "-" for key in ("p50_us", "p99_us")),
        "-" if row["kept"] is None else f"{row['kept']:.3f}",
        "; ".join(notes) or "-",
    ]
