"""Steps between programs and the arbiter as a trace for Perfetto (Chrome's JSON format), and in a few words. Pure.

A device is a process of the trace and a program on it a thread: when it waited and ran. What overlaps that (work that
drains, turns, requests, memory that is away) has tracks of its own, and resident memory is a counter.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemlet.daemon.explain import TURNS
from gemlet.daemon.history_moment import REASONS
from gemlet.monitor.columns import UNKNOWN, share_text
from gemlet.monitor.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gemlet.daemon.tracing import Traced, TracedClient

# By number in the steps (kWhyNames of the native server) why a client takes turns, for people; nothing for "shares".
STANDINGS = tuple(TURNS.get(reason, "") for reason in REASONS[:-1])
MIB = 2**20
MOST_DRAWN = 10_000  # stretches of a timeline
LEAST_NS = 1_000_000  # of a wait, to say who ran meanwhile

Event = dict[str, Any]


@dataclass
class Span:
    """One stretch of time of one client, ns of the clock. ``kind``: waits, runs, drains, turns, request, away."""

    kind: str
    client: int
    begin: int
    end: int
    name: str
    details: dict[str, Any] = field(default_factory=dict)
    meanwhile: dict[str, int] = field(default_factory=dict)  # of a wait or request: ns that other groups ran


@dataclass
class _Course:
    """What is known of one client while its steps are read. None: does not do it now."""

    client: TracedClient
    begin: int
    waits: int | None = None
    runs: int | None = None
    drains: int | None = None
    away: int | None = None
    wanted: int | None = None
    standing: str = ""
    since: int = 0
    known: bool = False  # whether it waits or runs
    details: dict[str, Any] = field(default_factory=dict)

    def take(self, at: int, what: str, value: int) -> Iterator[Span]:
        """The stretches that end with this step."""
        if what == "standing":
            yield from self._stand(at, _text(value & 15))
        elif what == "drained":
            if self.drains is not None:
                yield self._span("drains", self.drains, max(min(value, at), self.drains), "drains")
            self.drains = None
        elif what == "away":
            self.away = at
        elif what == "back":
            began = self.begin if self.away is None else self.away
            self.away = None
            yield self._span("away", began, at, "memory is not on the device")
        elif what == "served":
            began = max(self.begin, at - value if self.wanted is None else self.wanted)
            self.wanted = None
            yield self._span("request", began, min(at, began + value), "request", {"took ms": round(value / 1e6, 3)})
        else:
            yield from self._token(at, what, value)

    def _token(self, at: int, what: str, value: int) -> Iterator[Span]:
        if what == "request":
            self.known = True
            self.wanted = at if self.wanted is None else self.wanted
            if self.runs is None and self.waits is None:
                self.waits = at
        elif what in {"grant", "took"}:
            began = self.begin if not self.known and what == "grant" else self.waits
            if began is not None and at > began:
                yield self._span("waits", began, at, "waits", self._reason())
            self.wanted = at if self.wanted is None else self.wanted
            if self.runs is not None:
                yield self._span("runs", self.runs, at, "runs", self.details)
            self.known, self.waits, self.runs, self.details = True, None, at, {}
            self._deadline(at, value if what == "grant" else -1)
        elif what == "update":
            self._deadline(at, value)
        elif what == "revoke":
            self.details["told to stop after ms"] = round((at - (self.runs or self.begin)) / 1e6, 3)
        elif what.startswith("stopped: "):
            began = self.runs if self.known else self.begin
            why = what.removeprefix("stopped: ")
            if began is not None:
                yield self._span("runs", began, at, "runs", self.details | {"ended": why})
            goes_on = why in {"deadline", "revoked"}
            self.known, self.runs, self.waits, self.details = True, None, at if goes_on else None, {}
            self.wanted = self.wanted if goes_on or why == "idle" else None  # "served" follows
            self.drains = at
        elif what == "joins":
            self.known = True

    def _deadline(self, at: int, deadline: int) -> None:
        if deadline > 0:
            self.details["turn of ms"] = round((deadline - (self.runs or at)) / 1e6, 3)

    def _stand(self, at: int, now: str) -> Iterator[Span]:
        if self.standing:
            yield self._span("turns", self.since, at, self.standing)
        self.standing, self.since = now, at

    def end(self, at: int) -> Iterator[Span]:
        """What goes on at the end of the trace."""
        if not self.known and self.client.state in {"runs", "stops"}:
            self.runs = self.begin
        if not self.known and self.client.state == "waits":
            self.waits = self.begin
        if self.runs is not None:
            yield self._span("runs", self.runs, at, "runs", self.details)
        if self.waits is not None and self.client.state != "gone":
            yield self._span("waits", self.waits, at, "waits", self._reason())
        if self.away is not None:
            yield self._span("away", self.away, at, "memory is not on the device")
        yield from self._stand(at, "")

    def _reason(self) -> dict[str, Any]:
        why = "its memory is not on the device" if self.away is not None else self.standing
        return {"why": why} if why else {}

    def _span(self, kind: str, begin: int, end: int, name: str, details: dict[str, Any] | None = None) -> Span:
        return Span(kind, self.client.client, max(begin, self.begin), max(end, begin, self.begin), name, details or {})


def spans(traced: Traced) -> list[Span]:
    """The stretches of time that the steps mean, in the order of their ends."""
    standing = {client.client: TURNS.get(client.why, "") for client in traced.clients}
    for _, client, what, value in reversed(traced.steps):
        if what == "standing":
            standing[client] = _text(value >> 4)
    courses = {
        c.client: _Course(c, traced.begin_ns, standing=standing[c.client], since=traced.begin_ns)
        for c in traced.clients
    }
    found: list[Span] = []
    for at, client, what, value in traced.steps:
        if client in courses:
            found += courses[client].take(at, what, value)
    for course in courses.values():
        found += course.end(traced.end_ns)
    found = [span for span in found if span.end > span.begin or span.kind == "request"]
    ran = _ran(traced, found)
    for span in found:
        if span.kind in {"waits", "request"} and span.end - span.begin >= LEAST_NS:
            span.meanwhile = {name: ns for name, ns in ran(span).items() if ns >= (span.end - span.begin) / 20}
            if span.meanwhile:
                span.details["meanwhile ran"] = ", ".join(f"{n} {ns / 1e6:.1f} ms" for n, ns in span.meanwhile.items())
    return found


def _ran(traced: Traced, found: list[Span]) -> Callable[[Span], dict[str, int]]:
    """How long each other group's work was on the device during a stretch, in ns, most first."""
    clients = {client.client: client for client in traced.clients}
    busy: dict[tuple[str, int], list[Span]] = {}
    for span in found:
        if span.kind in {"runs", "drains"}:
            busy.setdefault((span.kind, span.client), []).append(span)
    begins = {key: [span.begin for span in own] for key, own in busy.items()}

    def during(span: Span) -> dict[str, int]:
        ran: dict[str, int] = {}
        own = clients[span.client]
        for key, theirs in busy.items():
            other = clients[key[1]]
            if other.device != own.device or other.client == own.client:
                continue
            for run in theirs[max(0, bisect_right(begins[key], span.begin) - 1) :]:
                if run.begin >= span.end:
                    break
                if (ns := min(run.end, span.end) - max(run.begin, span.begin)) > 0:
                    ran[other.group] = ran.get(other.group, 0) + ns
        return dict(sorted(ran.items(), key=lambda each: -each[1]))

    return during


def perfetto(traced: Traced) -> dict[str, Any]:
    """The document: microseconds since the trace began."""
    clients = {client.client: client for client in traced.clients}
    events = [*_names(traced)]
    timed: list[Event] = []
    for number, span in enumerate(spans(traced)):
        place = {"pid": clients[span.client].device + 1, "tid": span.client, "cat": span.kind, "name": span.name}
        begin, end = _us(traced, span.begin), _us(traced, span.end)
        if span.kind in {"waits", "runs"}:
            timed.append(place | {"ph": "X", "ts": begin, "dur": round(end - begin, 3), "args": span.details})
        else:
            label = {"name": f"{clients[span.client].group}: {span.name}", "id": number}
            timed.append(place | label | {"ph": "b", "ts": begin, "args": span.details})
            timed.append(place | label | {"ph": "e", "ts": max(end, round(begin + 0.001, 3))})
    for at, client, what, value in traced.steps:
        known = clients.get(client)
        if known is None:
            continue
        place = {"pid": known.device + 1, "tid": client, "ts": _us(traced, at)}
        if what == "revoke":
            timed.append(place | {"ph": "i", "s": "t", "cat": "runs", "name": "told to stop"})
        elif what in {"resident", "allowed"}:
            name = f"{_called(known)}: memory {'on the device' if what == 'resident' else 'that may be there'}"
            timed.append(place | {"ph": "C", "cat": "memory", "name": name, "args": {"MiB": round(value / MIB, 1)}})
    if traced.lost:
        place = {"pid": 0, "tid": 0, "ts": 0.0}
        timed.append(place | {"ph": "i", "s": "g", "cat": "gemlet", "name": "earlier steps are lost"})
    # Of two that begin together the longer one is around the other; an end comes before a begin.
    events += sorted(timed, key=lambda event: (event["ts"], event["ph"] != "e", -event.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "gemlet trace",
            "group": traced.group,
            "simulated": traced.simulated,
            "steps": len(traced.steps),
            "lost": traced.lost,
            "end_s": traced.end_s,
        },
    }


def timeline(traced: Traced) -> dict[str, Any]:
    """Rows of a picture: a program each, with (kind, begin, end, what there is to say) in ms; the newest `MOST_DRAWN`
    stretches."""
    clients = _sorted(traced)
    rows: dict[int, list[tuple[str, float, float, str]]] = {client.client: [] for client in clients}
    for span in spans(traced)[-MOST_DRAWN:]:
        said = ", ".join(f"{name}: {value}" for name, value in span.details.items())
        begin, end = ((at - traced.begin_ns) / 1e6 for at in (span.begin, span.end))
        rows[span.client].append(
            (span.kind, round(begin, 3), round(end, 3), span.name if span.kind == "turns" else said)
        )
    return {
        "length_ms": (traced.end_ns - traced.begin_ns) / 1e6,
        "rows": [{"name": _called(client), "spans": rows[client.client]} for client in clients if rows[client.client]],
    }


def _sorted(traced: Traced) -> list[TracedClient]:
    return sorted(traced.clients, key=lambda client: (client.group != traced.group, client.device, client.client))


def text(traced: Traced) -> str:
    """How much each program ran and waited, those of the group first, and when it waited longest."""
    clients = _sorted(traced)
    length = max(traced.end_ns - traced.begin_ns, 1)
    found = spans(traced)
    rows = []
    for client in clients:
        own = [span for span in found if span.client == client.client]
        device = str(client.device)
        part = {kind: sum(s.end - s.begin for s in own if s.kind == kind) / length for kind in ("runs", "waits")}
        requests = [s.end - s.begin for s in own if s.kind == "request"]
        longest = max((s for s in own if s.kind == "waits"), key=lambda s: s.end - s.begin, default=None)
        waited = f"{(longest.end - longest.begin) / 1e6:.1f} ms" if longest else UNKNOWN
        at = f"{(longest.begin - traced.begin_ns) / 1e9:.3f} s" if longest else UNKNOWN
        longest_request = f"{max(requests) / 1e6:.1f} ms" if requests else UNKNOWN
        behind: dict[str, int] = {}
        for span in own:
            for name, ns in span.meanwhile.items():
                behind[name] = behind.get(name, 0) + ns
        most = max(behind, key=lambda name: behind[name], default=UNKNOWN)
        cells = [*map(share_text, part.values()), waited, at, str(len(requests) or UNKNOWN), longest_request]
        rows.append([_called(client), device, *cells, most])
    header = ["PROGRAM", "DEVICE", "RAN", "WAITED", "LONGEST WAIT", "FROM", "REQUESTS", "LONGEST", "MEANWHILE RAN"]
    return "\n".join(table(header, rows, right=frozenset(header[2:8]))) + "\n"


def _names(traced: Traced) -> Iterator[Event]:
    for device in sorted({client.device for client in traced.clients}):
        name = f"GPU {device} {traced.devices.get(str(device), '')}".rstrip()
        yield {"ph": "M", "pid": device + 1, "tid": 0, "name": "process_name", "args": {"name": name}}
    for client in traced.clients:
        place = {"ph": "M", "pid": client.device + 1, "tid": client.client}
        yield place | {"name": "thread_name", "args": {"name": _called(client)}}
        order = client.client if client.group == traced.group else 1_000_000 + client.client
        yield place | {"name": "thread_sort_index", "args": {"sort_index": order}}


def _text(standing: int) -> str:
    return STANDINGS[standing] if standing < len(STANDINGS) else "takes turns"


def _called(client: TracedClient) -> str:
    return f"{client.group}: {client.name or client.command} ({client.pid})"


def _us(traced: Traced, at: int) -> float:
    return round(max(at - traced.begin_ns, 0) / 1e3, 3)
