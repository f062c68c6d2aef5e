"""What the windows of a row come to: speeds against alone, totals against the way without gemlet, targets. Pure.

A speed is what a program got done in a second over what it gets done alone. A total is the sum of speeds. Ways are
compared within a repeat, in which they ran one after another; the median of the repeats counts, the worst is shown.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.llm.rows import ALONE, SERVICES, WAYS, Member, Row
from bench.llm.work import Work, identical, settled_within, slowest
from bench.quantiles import quantile
from bench.report import Row as Line
from bench.report import grid, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

Load = tuple[str, float | None]
TOLERANCE = 0.06  # of a promise, in windows of 200 ms: where a turn takes 27 ms, one may lack half of one
SETTLES_MS = 300
CHANGES = 0.1  # seconds around a change in which a program alone does not work as fast
HALF = 0.48  # what is left of a half where hand-overs cost
LATENCIES = ("TTFT p50", "TTFT p99", "time per token p50", "time per token p99")
SHOWN = ("first token once taken up p50", "first token once taken up p99")  # TTFT without the queue


@dataclass
class Results:
    """Windows by repeat: of each way, of each member; and of each load alone."""

    row: Row
    windows: dict[str, dict[int, dict[str, Work]]] = field(default_factory=dict)
    alone: dict[Load, list[Work]] = field(default_factory=dict)

    def put(self, way: str, repeat: int, works: dict[str, Work]) -> None:
        self.windows.setdefault(way, {})[repeat] = works

    def ways(self) -> list[str]:
        return [way for way in WAYS if way in self.windows]

    def span(self) -> tuple[float, float]:
        return self.row.settle, self.row.seconds

    def rate_alone(self, member: Member) -> float:
        """Units a second, the median of its windows alone. 0: it did nothing, or never ran alone."""
        rates = [work.rate(self.begin(member, work), work.seconds) for work in self.alone.get(member.load, [])]
        return statistics.median(rates) if rates else 0.0

    def begin(self, member: Member, work: Work) -> float:
        """From when on its units count."""
        return 0.0 if is_sparse(member) else min(self.row.settle, work.seconds / 2)

    def by_repeat(self, way: str, member: Member, of: Callable[[Work], float] | None = None) -> dict[int, float]:
        """Its speed in each repeat. ``of`` gives units a second; None: of the window without its first seconds."""
        alone = self.rate_alone(member)
        count = of or (lambda work: work.rate(self.begin(member, work), work.seconds))
        windows = self.windows.get(way, {}) if alone else {}
        return {repeat: count(works[member.name]) / alone for repeat, works in windows.items()}

    def speeds(self, way: str, member: Member, of: Callable[[Work], float] | None = None) -> list[float]:
        return list(self.by_repeat(way, member, of).values())

    def totals(self, way: str) -> dict[int, float]:
        """By repeat."""
        members = [m for m in self.row.members if self.rate_alone(m)]
        columns = [self.by_repeat(way, member) for member in members]
        return {repeat: sum(column[repeat] for column in columns) for repeat in columns[0]} if columns else {}

    def ratios(self, way: str, base: str) -> list[float]:
        """Totals of ``way`` over those of ``base`` in the same repeat."""
        mine, other = self.totals(way), self.totals(base)
        return [mine[repeat] / other[repeat] for repeat in mine if other.get(repeat)]

    def latencies(self, way: str, member: Member, repeats: Set[int] | None = None) -> dict[str, float]:
        """Of all requests of ``repeats``, or of all, in ms. Empty if there were none."""
        works = dict(enumerate(self.alone.get(member.load, []))) if way == ALONE else {
            repeat: works[member.name] for repeat, works in self.windows.get(way, {}).items()
        }  # fmt: skip
        chosen = [work for repeat, work in works.items() if repeats is None or repeat in repeats]
        requests = [request for work in chosen for request in work.requests]
        if not requests:
            return {}
        ttft = [request.ttft_ms for request in requests]
        taken = [request.prefill_ms for request in requests]
        token = [request.per_token_ms for request in requests]
        each = [ms for request in requests for ms in request.token_ms]
        values = [quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(token, 0.5), quantile(token, 0.99)]
        return dict(zip(LATENCIES, values, strict=True)) | {
            SHOWN[0]: quantile(taken, 0.5), SHOWN[1]: quantile(taken, 0.99),
            "between tokens p99": quantile(each, 0.99), "requests": float(len(requests)),
        }  # fmt: skip

    def latencies_beside_alone(self, way: str, member: Member) -> tuple[dict[str, float], dict[str, float]]:
        """Of the repeats for which it also ran alone, so with the same arrivals: (in this way, alone)."""
        both = self.windows.get(way, {}).keys() & set(range(len(self.alone.get(member.load, []))))
        return self.latencies(way, member, both), self.latencies(ALONE, member, both)

    def same_answers(self, way: str, member: Member) -> bool | None:
        """Whether its answers are those it gives alone, bit by bit.

        None: there are none, or alone they differ from window to window, or it was alone too rarely to know.
        """
        references = [work.digests for work in self.alone.get(member.load, [])]
        longest = max(references, key=len, default=[])
        if not longest or not all(identical(reference, longest) for reference in references):
            return None
        same = all(identical(works[member.name].digests, longest) for works in self.windows.get(way, {}).values())
        return True if same else False if len(references) > 1 else None


def is_sparse(member: Member) -> bool:
    """Whether it does few units in a window, so that the first seconds cannot be left out."""
    return member.program == "notebook" or member.program in SERVICES


def lines(results: Results) -> list[Line]:
    """The row's numbers with their targets."""
    judged = JUDGES[results.row.judge](results)
    for way in results.ways():
        for member in results.row.members:
            same = results.same_answers(way, member)
            if same is False or (same and WAYS[way].base):
                judged.append(Line(f"{way}: answers of {member.name} as alone", float(same), ">= 1"))
    return [Line(f"{results.row.name}: {each.what}", each.value, each.target, each.note) for each in judged]


def middle(what: str, values: Sequence[float], target: str = "-", note: str = "") -> list[Line]:
    """The median, with the worst beside it: the smallest unless the target bounds it from above."""
    if not values:
        return []
    worst = max(values) if target.startswith("<=") else min(values)
    text = f"worst {number(worst)} of {len(values)}" + (f"; {note}" if note else "")
    return [Line(what, round(statistics.median(values), 4), target, text)]


def total_lines(results: Results, target: str) -> list[Line]:
    found = []
    for way in results.ways():
        parts = " + ".join(f"{median(results.speeds(way, m)):.3f}" for m in results.row.members)
        found += middle(f"total, {way}", list(results.totals(way).values()), note=parts)
        if base := WAYS[way].base:
            found += middle(f"total, {way} / {base}", results.ratios(way, base), target)
    return found


def judge_total(results: Results) -> list[Line]:
    return total_lines(results, ">= 0.97")


def judge_shown(results: Results) -> list[Line]:
    return total_lines(results, "-")


def judge_mixed(results: Results) -> list[Line]:
    """Totals, and what the service and the notebook among them felt."""
    return total_lines(results, ">= 0.97") + [
        line for member in results.row.members if member.program in SERVICES for line in latency_lines(results, member)
    ]


def judge_halves(results: Results) -> list[Line]:
    """Each gets its half in every second, and both together at least what turns give; under MPS as much as MPS."""
    found = total_lines(results, "-")
    found = [line for line in found if "/" not in line.what]
    for way in results.ways():
        for member in results.row.members:
            target = f">= {HALF}" if way == "gemlet" else "-"
            slowest = results.speeds(way, member, lambda work: work.worst_second(*results.span()))
            found += middle(f"worst second of {member.name}, {way}", slowest, target)
    found += [Line("total of gemlet, turns give 1", line.value, ">= 1.0", line.note)
              for line in found if line.what == "total, gemlet"]  # fmt: skip
    if "mps-gemlet" in results.windows:
        found += middle("total, mps-gemlet / mps", results.ratios("mps-gemlet", "mps"), ">= 0.97")
    return found


def judge_minima(results: Results) -> list[Line]:
    found = total_lines(results, ">= 0.97")
    for way in results.ways():
        for member in results.row.members:
            target = f">= {member.min:g}" if WAYS[way].base else "-"
            found += middle(f"speed of {member.name}, {way}", results.speeds(way, member), target)
            if WAYS[way].base:
                slowest = results.speeds(way, member, lambda work: work.worst_second(*results.span()))
                found += middle(f"worst second of {member.name}, {way}", slowest)
    return found


def judge_service(results: Results) -> list[Line]:
    """The neighbour keeps what it keeps without gemlet; requests wait no longer than without it."""
    served, neighbour = results.row.members
    found = []
    for way in results.ways():
        found += middle(f"{neighbour.name} keeps, {way}", results.speeds(way, neighbour))
        if base := WAYS[way].base:
            mine, other = results.by_repeat(way, neighbour), results.by_repeat(base, neighbour)
            kept = [speed / other[repeat] for repeat, speed in mine.items() if other.get(repeat)]
            found += middle(f"{neighbour.name} keeps, {way} / {base}", kept, ">= 0.95")
    return found + latency_lines(results, served, against_base=1.05, against_alone=1.1)


def judge_service_graph(results: Results) -> list[Line]:
    """The service is slowed little, and the neighbour keeps most of what the service leaves.

    Each repeat has arrivals of its own, and the window alone of the same number has the same ones. With them differ
    what is left, from .25 to .75 of the time, and how long requests wait for each other; so only repeats with such a
    window count, and the sums of all.
    """
    served, neighbour = results.row.members
    left = {repeat: 1 - work.busy(*results.span()) for repeat, work in enumerate(results.alone.get(served.load, []))}
    found = []
    for way in results.ways():
        speeds = {repeat: speed for repeat, speed in results.by_repeat(way, neighbour).items() if repeat in left}
        room = sum(left[repeat] for repeat in speeds)
        if room <= 0:
            continue
        what = f"{neighbour.name} keeps, of the {room / len(speeds):.2f} that the service leaves, {way}"
        target = ">= 0.8" if WAYS[way].base else "-"
        found.append(Line(what, round(sum(speeds.values()) / room, 4), target, f"of {len(speeds)}"))
    bounds = {"TTFT p50": 1.1, "TTFT p99": 1.6, "time per token p50": 1.1, "time per token p99": 1.6}
    for way in results.ways():
        got, alone = results.latencies_beside_alone(way, served)
        for what in (*LATENCIES, *SHOWN) if got and alone else ():
            target = f"<= {bounds[what]}" if WAYS[way].base and what in bounds else "-"
            found.append(Line(f"{what}, {way} / alone", round(got[what] / alone[what], 4), target, spread(got, what)))
    return found


def latency_lines(
    results: Results, member: Member, against_base: float | None = None, against_alone: float | None = None
) -> list[Line]:
    """Each latency against the way without gemlet; against alone only where that way itself holds the bound.

    Against alone count only the repeats that have such a window: with the same arrivals.
    """
    found = []
    for way in results.ways():
        got = results.latencies(way, member)
        paired, alone = results.latencies_beside_alone(way, member)
        base = WAYS[way].base
        other = results.latencies(base, member) if base else {}
        beside = results.latencies_beside_alone(base, member)[0] if base else {}
        for what in LATENCIES if got else ():
            if paired and alone:
                fair = beside and against_alone and beside[what] <= against_alone * alone[what]
                target = f"<= {against_alone}" if fair else "-"
                value = round(paired[what] / alone[what], 4)
                found.append(Line(f"{what}, {way} / alone", value, target, spread(paired, what)))
            if other:
                target = f"<= {against_base}" if against_base else "-"
                found.append(Line(f"{what}, {way} / {base}", round(got[what] / other[what], 4), target))
    return found


def spread(got: dict[str, float], what: str) -> str:
    return f"{got[what]:.1f} ms of {got['requests']:.0f} requests"


def judge_changing(results: Results) -> list[Line]:
    """After each change both have their half again, and keep it until the next.

    Half of what the program always does alone in that phase, in each window of the same length: its speed drifts, also
    when nobody is there.
    """
    changing, other = results.row.members
    period, end = results.row.period, results.row.seconds
    found = []
    for way in results.ways():
        times: list[float] = []
        for works in results.windows[way].values():
            begin = 0.0
            while begin + period <= end + 1e-9:
                for member in (changing, other):
                    alone = results.alone.get(member.load, [])
                    inside = begin + CHANGES, begin + period - CHANGES
                    always = min((slowest(work, *inside) for work in alone), default=0.0)
                    if always:
                        got = settled_within(works[member.name], (0.5 - TOLERANCE) * always, begin, begin + period)
                        times.append(float("inf") if got is None else got * 1000)
                begin += period
        if times:
            bounded = way == "gemlet"
            held = sum(t <= SETTLES_MS for t in times) / len(times)
            found += middle(f"ms until both have their half for good, {way}", times, "<= 300" if bounded else "-")
            text = f"{len(times)} changes"
            found.append(Line(f"held within {SETTLES_MS} ms, {way}", round(held, 4), ">= 1" if bounded else "-", text))
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


JUDGES: dict[str, Callable[[Results], list[Line]]] = {
    "total": judge_total,
    "shown": judge_shown,
    "mixed": judge_mixed,
    "halves": judge_halves,
    "minima": judge_minima,
    "service": judge_service,
    "service-graph": judge_service_graph,
    "changing": judge_changing,
}

HEAD = ["row", "program", ALONE, *WAYS]


def table(everything: Sequence[Results]) -> str:
    """One line a program: what it gets done alone, its speed in each way; below it the latencies of a service."""
    cells: list[list[str]] = []
    for results in everything:
        if not results.windows:
            continue
        name = results.row.name
        for member in results.row.members:
            speeds = [cell(results.speeds(way, member)) for way in WAYS]
            cells.append([name, member.name, f"{number(results.rate_alone(member))}/s", *speeds])
            alone = results.latencies(ALONE, member)
            for what in LATENCIES if alone else ():
                of = [results.latencies(way, member).get(what) for way in WAYS]
                cells.append(
                    ["", f"  {what}, ms", f"{alone[what]:.1f}", *("-" if v is None else f"{v:.1f}" for v in of)]
                )
            name = ""
        if len(results.row.members) > 1 and results.row.judge != "service":
            totals = [cell(list(results.totals(way).values())) if way in results.windows else "-" for way in WAYS]
            cells.append(["", "total", "", *totals])
    return grid(HEAD, cells, left=(0, 1)) if cells else "no row was measured"


def cell(values: Sequence[float]) -> str:
    """Median and worst."""
    return f"{statistics.median(values):.3f} ({min(values):.3f})" if values else "-"
