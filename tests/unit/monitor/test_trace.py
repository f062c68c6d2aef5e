"""A trace: what steps mean, as Perfetto's slices."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gemlet.daemon.tracing import Traced, TracedClient
from gemlet.monitor import trace
from tests.unit.monitor.trace_format import check

MS = 1_000_000
BEGIN = 5_000 * MS
EACH_WHAT = [
    *("request", "took", "grant", "update", "revoke", "park", "unpark", "drained", "joins", "leaves", "standing"),
    *("stopped: deadline", "stopped: idle", "stopped: revoked", "stopped: exit", "stopped too late", "served"),
    *("allowed", "resident", "away", "back"),
]


def client(number, group, *, state="idle", why="shares", device=0):
    return TracedClient(
        client=number,
        pid=100 + number,
        uid=0,
        command="python",
        group=group,
        device=device,
        state=state,
        why=why,
        name=f"{group}.py",
    )


def traced(steps, *clients, length_ms=1000, **changes):
    return Traced(
        group="a",
        begin_ns=BEGIN,
        end_ns=BEGIN + length_ms * MS,
        end_s=1e9,
        devices={"0": "NVIDIA H200"},
        clients=list(clients),
        steps=[(BEGIN + round(at * MS), who, what, value) for at, who, what, value in steps],
        **{"lost": False, "next": len(steps), **changes},
    )


def spans(document, kind, who=1):
    found = [span for span in trace.spans(document) if span.kind == kind and span.client == who]
    return [((span.begin - BEGIN) / MS, (span.end - BEGIN) / MS) for span in found]


def test_waiting_running_and_draining():
    document = traced(
        [
            (10, 1, "request", 0),
            (30, 1, "grant", BEGIN + 80 * MS),
            (70, 1, "revoke", 0),
            (71, 1, "stopped: revoked", 2 * MS),
            (73, 1, "drained", BEGIN + 73 * MS),
            (90, 1, "grant", -1),
            (100, 1, "stopped: idle", 0),
        ],
        client(1, "a"),
    )
    assert spans(document, "waits") == [(10, 30), (71, 90)]
    assert spans(document, "runs") == [(30, 71), (90, 100)]
    assert spans(document, "drains") == [(71, 73)]
    (first, _) = [span for span in trace.spans(document) if span.kind == "runs"]
    assert first.details == {"turn of ms": 50.0, "told to stop after ms": 40.0, "ended": "revoked"}


def test_what_went_on_when_the_trace_began_and_ended():
    steps = [(40, 1, "stopped: deadline", 0), (60, 2, "grant", -1)]
    document = traced(steps, client(1, "a", state="waits"), client(2, "b", state="runs"))
    assert spans(document, "runs", 1) == [(0, 40)]
    assert spans(document, "waits", 1) == [(40, 1000)]
    assert spans(document, "waits", 2) == [(0, 60)]
    assert spans(document, "runs", 2) == [(60, 1000)]
    quiet = traced([], client(1, "a", state="runs"), client(2, "b", state="waits"), client(3, "c"))
    assert spans(quiet, "runs", 1) == [(0, 1000)]
    assert spans(quiet, "waits", 2) == [(0, 1000)]
    assert [span.client for span in trace.spans(quiet)] == [1, 2]


def test_a_wait_says_why_and_who_ran_meanwhile():
    steps = [
        (0, 2, "grant", -1),
        (100, 1, "standing", 0 << 4 | 2),
        (100, 1, "request", 0),
        (200, 2, "stopped: deadline", 0),
        (200, 3, "took", 0),
        (210, 3, "stopped: idle", 0),
        (210, 1, "grant", -1),
    ]
    document = traced(steps, client(1, "a", why="both busy"), client(2, "b"), client(3, "c"))
    (wait,) = [span for span in trace.spans(document) if span.kind == "waits" and span.client == 1]
    assert wait.details["why"] == trace.STANDINGS[2]
    assert wait.details["meanwhile ran"] == "b 100.0 ms, c 10.0 ms"
    assert spans(document, "turns") == [(100, 1000)]
    row = trace.text(document).splitlines()[1]
    assert row.split() == ["a:", "a.py", "(101)", "0", "79%", "11%", "110.0", "ms", "0.100", "s", "-", "-", "b"]


def test_requests_memory_and_lost_steps():
    steps = [
        (2, 2, "took", 0),
        (10, 1, "took", 0),
        (11, 2, "stopped: revoked", 0),
        (13, 2, "drained", BEGIN + 13 * MS),
        (25, 1, "stopped: idle", 0),
        (25, 1, "served", 12 * MS),
        (30, 1, "away", 0),
        (31, 1, "allowed", 2**30),
        (60, 1, "back", 0),
    ]
    document = traced(steps, client(1, "a"), client(2, "b"), lost=True)
    assert spans(document, "request") == [(10, 22)]
    assert trace.text(document).splitlines()[1].split()[-4:] == ["1", "12.0", "ms", "b"]
    (request,) = [span for span in trace.spans(document) if span.kind == "request"]
    assert request.details["meanwhile ran"] == "b 3.0 ms"
    assert spans(document, "away") == [(30, 60)]
    found = trace.perfetto(document)
    check(found)
    names = {event["name"] for event in found["traceEvents"]}
    assert {"a: request", "a: memory is not on the device", "earlier steps are lost"} <= names
    (counter,) = [event for event in found["traceEvents"] if event["ph"] == "C"]
    assert counter["args"] == {"MiB": 1024.0}
    assert found["otherData"]["lost"] is True
    json.dumps(found)


STEP = st.tuples(
    st.integers(0, 50),
    st.integers(1, 4),  # the fourth is nobody's
    st.sampled_from(EACH_WHAT),
    st.one_of(st.just(-1), st.integers(0, 200), st.integers(BEGIN, BEGIN + 100 * MS), st.just(2**62)),
)


@given(st.lists(STEP, max_size=60), st.sampled_from(["idle", "runs", "waits", "stops", "gone"]))
def test_any_steps_make_a_trace_that_perfetto_takes(steps, state):
    steps.sort(key=lambda step: step[0])
    clients = [client(1, "a", state=state), client(2, "b", device=1), client(3, "a", state="runs")]
    document = traced(steps, *clients, length_ms=60)
    check(trace.perfetto(document))
    trace.text(document)


def test_the_timeline_of_the_page(monkeypatch):
    steps = [
        (10, 1, "request", 0),
        (10, 2, "standing", 0 << 4 | 2),
        (30, 1, "grant", -1),
        (40, 1, "stopped: idle", 0),
    ]
    document = traced(steps, client(1, "a"), client(2, "b", state="runs", why="both busy"), client(3, "c"))
    found = trace.timeline(document)
    assert found["length_ms"] == 1000
    a, b = found["rows"]  # the third did nothing
    assert a["name"] == "a: a.py (101)"
    assert a["spans"] == [
        ("waits", 10.0, 30.0, "meanwhile ran: b 20.0 ms"),
        ("runs", 30.0, 40.0, "ended: idle"),
    ]
    assert [span[0] for span in b["spans"]] == ["runs", "turns"]
    assert b["spans"][1][1:] == (10.0, 1000.0, trace.STANDINGS[2])
    monkeypatch.setattr(trace, "MOST_DRAWN", 1)
    assert len(trace.timeline(document)["rows"]) == 1
    json.dumps(found)
