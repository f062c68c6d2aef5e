"""Which requests of a run were late, and why: from the server's request log and the plans that were in force.

A request is late if it was refused, or answered after its SLO as the server saw it. Each has one cause, the first of
these that holds:

start     it came within START_S of the first request
short     more came of its model in that second than the plan in force was made to serve
making    a plan with other gpu-lets was being made: weights are loaded and graphs captured beside the running models
changed   such a plan came into force less than AFTER_S before
steady    none of these

and one stage, the longest of its own: received, queued, way, computed or answered; "refused" if it has none.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.serve.profiles.variation import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gemlet.serve.profiles.profile import Profiles

START_S, AFTER_S = 5.0, 2.0
CAUSES = ("start", "short", "making", "changed", "steady")
STAGES = ("received", "queued", "way", "computed", "answered")
BESIDE_CHANCE = 1.1  # of what a plan serves: a second's count errs by some per cent
TOOK, MOVED = re.compile(r"in force after (\d+) ms"), re.compile(r"(\d+) gpu-lets? changed")
FIRST = 10  # batches of a gpu-let
MOST_LATE = 20_000  # of the requests that are kept one by one


@dataclass(frozen=True, slots=True)
class Adopted:
    """A plan: when it was in force (Unix seconds), since when it was being made, how many gpu-lets are other ones, and
    requests/s that it serves, by model."""

    since: float
    begun: float
    moved: int
    capacity: Mapping[str, float]


def in_force(change: Mapping[str, Any], capacity: Mapping[str, float]) -> Adopted:
    """From what the server's log says of a plan (bench.live_server.LiveServer.changes)."""
    took, moved = TOOK.search(change["words"]), MOVED.search(change["words"])
    since = change["unix_s"]
    begun = since - float(took[1]) / 1000 if took else since
    return Adopted(since, begun, int(moved[1]) if moved else 0, capacity)


def read(path: Path) -> list[dict[str, Any]]:
    """The request log. A line that was not yet whole when the server ended is left out."""
    lines = []
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError):
                lines.append(msgspec.json.decode(line))
    return lines


def late(line: Mapping[str, Any], slos_ms: Mapping[str, float]) -> bool:
    """Cancelled requests are neither late nor in time."""
    if line["outcome"] == "cancelled":
        return False
    return line["outcome"] != "answered" or line["total_ms"] > slos_ms[line["model"]]


def stage(line: Mapping[str, Any]) -> str:
    if line["outcome"] != "answered":
        return "refused"
    return max(STAGES, key=lambda name: line.get(f"{name}_ms", 0.0))


class Judge:
    """Says the cause of a late request. ``lines``: all requests of the run; ``plans``: in the order they came."""

    def __init__(self, lines: Sequence[Mapping[str, Any]], plans: Sequence[Adopted]) -> None:
        self.began = min((line["time"] for line in lines), default=0.0)
        self._plans = plans
        self._changes = [plan for plan in plans if plan.moved]
        self.makings = [(plan.begun, plan.since) for plan in self._changes]
        self._came = Counter((line["model"], int(line["time"] - self.began)) for line in lines)

    def cause(self, line: Mapping[str, Any]) -> str:
        at = line["time"]
        if at < self.began + START_S:
            return "start"
        before = [plan for plan in self._plans if plan.since <= at]
        if before:
            can = before[-1].capacity.get(line["model"], 0.0)
            if self._came[line["model"], int(at - self.began)] > BESIDE_CHANCE * can:
                return "short"
        if any(plan.begun <= at < plan.since for plan in self._changes):
            return "making"
        if any(plan.since <= at < plan.since + AFTER_S for plan in self._changes):
            return "changed"
        return "steady"


def report(
    lines: Sequence[Mapping[str, Any]], plans: Sequence[Adopted], slos_ms: Mapping[str, float], known: Profiles
) -> dict[str, Any]:
    """``by_cause``: late requests by model and cause; ``by_stage``: by cause and stage; ``late``: each of them;
    ``batches``: see batches()."""
    judge = Judge(lines, plans)
    by_cause: dict[str, Counter[str]] = {model: Counter() for model in slos_ms}
    by_stage: dict[str, Counter[str]] = {cause: Counter() for cause in CAUSES}
    single = []
    for line in lines:
        if line["model"] not in slos_ms or not late(line, slos_ms):
            continue
        cause, where = judge.cause(line), stage(line)
        by_cause[line["model"]][cause] += 1
        by_stage[cause][where] += 1
        if len(single) < MOST_LATE:
            times = [line.get(f"{name}_ms", 0.0) for name in STAGES]
            at = round(line["time"] - judge.began, 3)
            single.append([at, line["model"], cause, where, line.get("gpu_let", ""), line.get("batch", 0), *times])
    return {
        "began_unix_s": judge.began,
        "requests": len(lines),
        "by_cause": {model: dict(causes) for model, causes in by_cause.items()},
        "by_stage": {cause: dict(stages) for cause, stages in by_stage.items() if stages},
        "batches": batches(lines, known, judge.began, judge.makings),
        "late_columns": ["at_s", "model", "cause", "stage", "gpu_let", "batch", *(f"{name}_ms" for name in STAGES)],
        "late": single,
    }


def batches(
    lines: Iterable[Mapping[str, Any]], known: Profiles, began: float, makings: Sequence[tuple[float, float]] = ()
) -> list[dict[str, Any]]:
    """A row for each model and share: batches, their mean rows, and the median and 95th percentile of what they took
    over their profile's time, of their way in ms, and of two kinds over the profile that are not in the first: the
    first ones of each gpu-let (``first``), and those that began while gpu-lets were made ready (``making``).
    """
    seen: dict[tuple[str, float], dict[tuple[str, float], Mapping[str, Any]]] = defaultdict(dict)
    for line in lines:
        if line["outcome"] == "answered" and line.get("batch") and line["model"] in known.models:
            start = line["time"] + (line.get("received_ms", 0.0) + line.get("queued_ms", 0.0)) / 1000
            key = (line.get("gpu_let", ""), round(start, 4))  # the requests of one batch started at the same time
            seen[line["model"], line.get("sm", 1.0)].setdefault(key, line)
    found = []
    for (model, share), by_start in sorted(seen.items()):
        row = known.models[model].surface.row(share)
        over: list[float] = []
        first: list[float] = []
        making: list[float] = []
        count: Counter[str] = Counter()
        for (gpu_let, start), line in sorted(by_start.items(), key=lambda each: each[0][1]):
            rows = line["batch"]
            expected = row[rows] if rows < len(row) else row[-1] * rows / (len(row) - 1)
            count[gpu_let] += 1
            beside = any(begin <= start < end for begin, end in makings)
            kind = first if count[gpu_let] <= FIRST else making if beside else over
            kind.append(line.get("computed_ms", 0.0) / expected)
        way = sorted(line.get("way_ms", 0.0) for line in by_start.values())
        each: dict[str, Any] = {
            "model": model, "sm": share, "batches": len(by_start),
            "from_s": _round(min(start for _, start in by_start) - began),
            "mean_rows": _round(sum(line["batch"] for line in by_start.values()) / len(by_start)),
        }  # fmt: skip
        for name, values in (
            ("over", sorted(over)), ("first", sorted(first)), ("making", sorted(making)), ("way_ms", way),
        ):  # fmt: skip
            each |= {f"{name}_p50": _rank(values, 0.5), f"{name}_p95": _rank(values, 0.95)}
        found.append(each)
    return found


def _rank(values: Sequence[float], q: float) -> float | None:
    return _round(nearest_rank(values, q)) if values else None


def _round(value: float) -> float:
    return round(value, 3)
