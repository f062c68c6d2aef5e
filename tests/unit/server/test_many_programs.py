"""What is known of groups without a look at each program: it costs as much however many there are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gemlet.daemon.native import read_snapshot
from gemlet.daemon.recent_usage import RecentUsage
from gemlet.daemon.totals import Totals
from tests.counting import calls
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

GIB = 1 << 30
DEVICE = bytes(16)


def group(s: Served) -> dict[str, Any]:
    """The group as a look at groups alone shows it."""
    [found] = [g for device in s.server.snapshot(listed=False)["devices"] for g in device["groups"]]
    return dict(found)


def look(s: Served, recent: RecentUsage, totals: Totals) -> None:
    """What the daemon does ten times a second."""
    snapshot = read_snapshot(s.server, listed=False)
    recent.add(snapshot)
    totals.add(snapshot, recent.total, lambda _: True)


def test_a_look_costs_as_much_however_many_programs_there_are(serve: Callable[..., Served]) -> None:
    s = serve()
    clients = [RawClient(s.path, "g").attach()]
    recent, totals = RecentUsage(), Totals()
    look(s, recent, totals)
    one = calls(lambda: look(s, recent, totals))
    for _ in range(100):
        clients.append(RawClient(s.path, "g").attach())
        RawClient(s.path, "g")  # which uses no device
    assert calls(lambda: look(s, recent, totals)) == one
    found = s.server.snapshot(listed=False)
    assert (group(s)["programs"], found["ungoverned"], found["unmanaged"]) == (101, 100, [])
    assert group(s)["clients"] == []
    assert len(s.groups()["g"]["clients"]) == 101  # type: ignore[arg-type]


def test_what_programs_have_done_stays_when_they_go(serve: Callable[..., Served]) -> None:
    s = serve()
    first, second = (RawClient(s.path, "g").attach() for _ in range(2))
    for client, launches in ((first, 3), (second, 4)):
        client.page.put("launches", launches)
        client.page.put("work_ns", 10 * launches)
    assert (group(s)["launches"], group(s)["work_ns"]) == (7, 70)
    first.page.put("launches", 2)  # a page is written by its program
    assert group(s)["launches"] == 7
    first.page.put("launches", 5)
    first.close()
    wire.eventually(lambda: group(s)["programs"] == 1)
    assert (group(s)["launches"], group(s)["work_ns"]) == (9, 70)
    second.page.put("launches", 2**64 - 1)
    assert group(s)["launches"] == 2**64 - 1


def test_a_group_whose_memory_is_away_says_so(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.add_device(DEVICE, 0)
    s.server.set_capacity(DEVICE, 8 * GIB)
    first, second = (RawClient(s.path, "g").attach(DEVICE) for _ in range(2))
    assert (group(s)["swapped"], group(s)["awaits_memory"], group(s)["memory_reason"]) == (0, False, "")
    for client in (first, second):
        client.residency.put("movable", 6 * GIB)
        client.residency.put("away", 1, size=4)
        client.ledger.put("slots", 6 * GIB, index=client.slot)
        client.send(wire.ADMIT, value=6 * GIB, epoch=1)
        wire.eventually(lambda client=client: client.residency.get("answered", size=4) == 1)
    assert (group(s)["swapped"], group(s)["awaits_memory"]) == (12 * GIB, True)
    waits = [c["movable"]["reason"] for c in s.groups()["g"]["clients"] if c["movable"]["queued"]]  # type: ignore[attr-defined]
    assert group(s)["memory_reason"] == next(reason for reason in waits if reason)


def test_bytes_that_a_program_moved_under_the_daemon_before_are_no_news(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.add_device(DEVICE, 0)
    s.server.set_capacity(DEVICE, 8 * GIB)
    client = RawClient(s.path, "g").attach(DEVICE)
    client.residency.put("moved_out", 5 * GIB)
    assert group(s)["moved"] == 0
    client.residency.put("moved_in", GIB)
    assert group(s)["moved"] == GIB


def test_who_is_beside_mps_is_known_where_it_matters(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("g", sm=0.5)
    RawClient(s.path, "g").attach(flags=wire.UNDER_MPS)
    assert list(group(s)["beside_mps"]) == []
    RawClient(s.path, "g").attach()
    assert list(group(s)["beside_mps"]) == [os.getpid()]
    s.server.set_group("g", sm=1.0)
    assert list(group(s)["beside_mps"]) == []


def test_the_group_of_each_process(serve: Callable[..., Served]) -> None:
    s = serve()
    client = RawClient(s.path, "g")
    assert s.server.groups_by_pid() == {}  # it uses no device
    client.attach()
    assert s.server.groups_by_pid() == {os.getpid(): "g"}
