"""The last steps, and how long requests of the class latency took, as clients by hand make them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from tests.unit.server import wire
from tests.unit.server.conftest import native
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

MS = 1_000_000


def steps(s: Served, since: int = 0) -> list[str]:
    return [what for _, _, what, _ in s.server.trace(since, 100_000)[0]]


def turn(client: RawClient, *, paused: int = 0) -> None:
    """Asks or takes, and is idle `paused` ns after its work is done."""
    if client.state == wire.PARKED:
        client.page.put("token", client.epoch << 3 | wire.RUN, size=4)
        client.send(wire.TOOK, epoch=client.epoch)
    else:
        client.send(wire.REQUEST)
    client.await_state(wire.RUN)
    client.send(wire.STOPPED, epoch=client.epoch, reason=wire.IDLE, value=paused)
    client.await_state(wire.PARKED)
    all_heard(client)


def all_heard(client: RawClient) -> None:
    """Until the server is through with what the client has sent: it answers in turn, here that this has been done."""
    assert client.ask(wire.ATTACH).status != wire.OK


def test_steps_are_numbered_and_those_that_are_overwritten_are_missing(serve: Callable[..., Served]) -> None:
    s = serve(trace=8)
    a = RawClient(s.path, "a").attach()
    before = time.monotonic_ns()
    for _ in range(5):
        turn(a)
    kept, end, lost = s.server.trace(0, 100)
    first = end - 8
    assert len(kept) == 8
    assert first > 0
    assert lost
    assert [at for at, *_ in kept] == sorted(at for at, *_ in kept)
    assert s.server.trace(first + 6, 100) == (kept[6:], end, False)
    assert s.server.trace(first, 3) == (kept[:3], first + 3, False)
    assert s.server.trace(first - 1, 3) == (kept[:3], first + 3, True)
    assert s.server.trace(10_000, 3) == ([], end, False)
    assert s.server.trace_at(before) == (first, True)
    assert s.server.trace_at(kept[5][0]) == (first + 5, False)
    assert s.server.trace_at(s.server.clock()) == (first + 8, False)


def test_who_left_is_known_by_name(serve: Callable[..., Served]) -> None:
    s = serve()
    a = RawClient(s.path, "a").attach()
    (entry,) = s.server.traced()
    assert (entry["group"], entry["state"], entry["why"]) == ("a", "idle", "always")
    a.close()
    wire.eventually(lambda: [e["state"] for e in s.server.traced()] == ["gone"])
    assert steps(s) == ["joins", "standing", "leaves"]


def test_a_flood_of_one_user_leaves_the_last_steps_of_another(serve: Callable[..., Served]) -> None:
    s = serve(trace=64)
    s.server.listen(s.path + "2", group="b")  # as another user: who comes through it is that group
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path + "2", "b").attach()
    for _ in range(3):
        turn(b)
    begin = time.monotonic_ns()
    (mine,) = (entry["client"] for entry in s.server.traced() if entry["group"] == "b")

    def of_b() -> list[tuple[int, int, str, int]]:
        return [step for step in s.server.trace(0, 1000)[0] if step[1] == mine]

    before = of_b()
    assert len(before) > 10
    ahead = s.server.trace_at(2**62)[0]
    for _ in range(1000):  # these change nothing
        a.send(wire.REQUEST, epoch=0)
    all_heard(a)  # nothing is to come in between
    assert s.server.trace_at(2**62)[0] >= ahead + 1000
    kept, _, lost = s.server.trace(0, 1000)
    assert len(kept) == 64
    assert lost
    assert [at for at, *_ in kept] == sorted(at for at, *_ in kept)
    assert len(of_b()) <= 16  # an equal part of half of them
    assert set(before[-10:]) <= set(of_b())  # and what a's requests led to
    assert s.server.trace_at(begin)[1]
    # Answer by answer it is the same.
    parts: list[Any] = []
    number = 0
    while number < s.server.trace_at(2**62)[0]:
        part, number, _ = s.server.trace(number, 5)
        parts += part
    assert parts == kept


def test_who_comes_and_goes_without_end_does_not_make_others_nameless(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.listen(s.path + "2", group="b")
    RawClient(s.path + "2", "b").attach().close()
    gone = 1100  # more than are kept
    for _ in range(gone):
        RawClient(s.path, "a").attach().close()
    wire.eventually(lambda: len(s.server.traced()) == 1024)
    assert [entry["group"] for entry in s.server.traced()].count("b") == 1


def test_without_a_ring_nothing_is_kept(serve: Callable[..., Served]) -> None:
    s = serve(trace=0)
    turn(RawClient(s.path, "a").attach())
    assert s.server.trace(0, 100) == ([], 0, False)
    assert s.server.trace_at(0) == (0, False)


def latencies(s: Served, group: str = "a") -> dict[int, int]:
    found: Any = s.groups()[group]["latencies"]
    return dict(found)


def test_requests_of_the_class_latency_are_counted_by_their_length(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("a", priority="latency")
    a = RawClient(s.path, "a").attach()
    bounds = native.LATENCY_BOUNDS_NS
    begun = time.monotonic_ns()
    # It says that it asked 800 ms ago, and that its work has been done for 750 of these.
    a.send(wire.REQUEST, time_ns=begun - 800 * MS)
    a.await_state(wire.RUN)
    a.send(wire.STOPPED, epoch=a.epoch, reason=wire.IDLE, value=750 * MS)
    wire.eventually(lambda: latencies(s))
    ((bound, count),) = latencies(s).items()
    assert count == 1
    took = s.groups()["a"]["latency_sum_ns"]
    assert isinstance(took, int)
    assert 50 * MS <= took <= 50 * MS + (time.monotonic_ns() - begun)
    assert bounds[bound - 1] < took <= bounds[bound]
    assert steps(s)[-1] in {"served", "park"}
    # However long it says that it paused: no less than nothing.
    turn(a, paused=2**63)
    wire.eventually(lambda: sum(latencies(s).values()) == 2)
    assert latencies(s)[0] == 1


def test_a_request_goes_on_over_turns_that_others_cut(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("a", priority="latency")
    a = RawClient(s.path, "a").attach()
    a.send(wire.REQUEST, time_ns=time.monotonic_ns() - 500 * MS)
    a.await_state(wire.RUN)
    a.stop(wire.BY_REVOCATION, wants=True)
    a.await_state(wire.RUN)
    assert latencies(s) == {}
    a.send(wire.STOPPED, epoch=a.epoch, reason=wire.IDLE)
    wire.eventually(lambda: latencies(s))
    (bound,) = latencies(s)
    assert native.LATENCY_BOUNDS_NS[bound] >= 500 * MS


def test_work_of_other_classes_and_programs_that_end_make_no_requests(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("b", priority="latency")
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    turn(a)
    b.send(wire.REQUEST)
    b.await_state(wire.RUN)
    b.stop(wire.EXIT)
    wire.eventually(lambda: "stopped: exit" in steps(s))
    assert "served" not in steps(s)
    assert (latencies(s, "a"), latencies(s, "b")) == ({}, {})


def test_bounds_rise_by_a_fifth_or_so() -> None:
    bounds = native.LATENCY_BOUNDS_NS
    assert {1 * MS, 2 * MS, 5 * MS, 1000 * MS} <= set(bounds)
    assert all(1.1 < b / a < 1.35 for a, b in itertools.pairwise(bounds))
