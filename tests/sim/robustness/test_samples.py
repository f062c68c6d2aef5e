"""What a client's page says of its queues, and of the threads that wait for them."""

from __future__ import annotations

import ctypes
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import eventually
from tests.unit.server.wire import OFFSETS

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Running, Served

pytestmark = pytest.mark.timeout(180)
ENOUGH = 60  # samples; the server runs in this process, so its side of the pages is mapped here


def pages(kind: str = "page") -> set[int]:
    maps = Path("/proc/self/maps").read_text()
    return {int(begin, 16) for begin in re.findall(rf"^(\w+)-.*/memfd:gemlet-{kind}\b", maps, re.MULTILINE)}


class Client:
    def __init__(self, machine: Machine, group: str, verb: str) -> None:
        before = pages()
        self.running: Running = machine.start(group, verb, 60)
        eventually(lambda: self.running.rounds() > 3, 60)
        (self.page,) = pages() - before

    def get(self, name: str) -> int:
        return ctypes.c_uint64.from_address(self.page + OFFSETS[f"ClientPage.{name}"]).value

    def counts(self) -> tuple[int, int, int]:
        return self.get("samples"), self.get("busy_samples"), self.get("awaited_samples")


def parts(*clients: Client) -> list[tuple[float, float]]:
    """Of each client's samples from now on: busy, and awaited among the busy ones."""
    before = [c.counts() for c in clients]
    eventually(lambda: all(c.counts()[1] - b[1] >= ENOUGH for c, b in zip(clients, before, strict=True)), 90)
    found = []
    for client, then in zip(clients, before, strict=True):
        samples, busy, awaited = (now - was for now, was in zip(client.counts(), then, strict=True))
        assert samples >= busy >= awaited >= 0
        found.append((busy / samples, awaited / busy))
    return found


def test_a_program_bound_by_its_host_is_not_seen_to_wait(machine: Machine, served: Served) -> None:
    waiting, working = Client(machine, "a", "work"), Client(machine, "b", "host-bound")
    (busy, awaited), (_, seldom) = parts(waiting, working)
    assert busy > 0.8, "its queue is filled nearly always"
    assert awaited > 0.8
    assert seldom < 0.6 * awaited, "the other looks for its work only when it is done"
    for client in (waiting, working):
        assert client.get("work_ns") > 0
        assert client.get("launches") > 0


def test_a_program_that_waits_in_copies_is_busy_and_waits(machine: Machine, served: Served) -> None:
    client = Client(machine, "a", "copy-back")
    ((busy, awaited),) = parts(client)
    assert busy > 0.8
    assert awaited > 0.8

    def changes_in_one_wait() -> int:
        told, done = set(), client.running.rounds()
        while client.running.rounds() == done:
            told.add(client.counts())
        return len(told)

    # The driver lets nobody record an event on the stream meanwhile: a watcher that does tells all of it afterwards.
    assert statistics.median(changes_in_one_wait() for _ in range(6)) > 8


@pytest.mark.parametrize("verb", ["poll-streams", "poll-events"])
def test_a_program_that_polls_waits(machine: Machine, served: Served, verb: str) -> None:
    ((_, awaited),) = parts(Client(machine, "a", verb))
    assert awaited > 0.2  # not all: the host may be too busy to let it ask once in a millisecond


def test_a_program_waits_for_room_in_a_full_queue(machine: Machine, served: Served) -> None:
    ((busy, awaited),) = parts(Client(machine, "a", "flood"))
    assert busy > 0.8
    assert awaited > 0.8, "its thread is in a launch that does not return"


def test_waits_and_questions_answer_as_the_driver_does(machine: Machine, served: Served) -> None:
    plain = machine.run(None, "ask-wrongly")
    assert len(plain.split()) == 1 + 12
    assert machine.run("a", "ask-wrongly") == plain
    assert machine.run("a", "ask-wrongly", GEMLET_SOCKET="/nowhere") == plain


@pytest.mark.parametrize(("priority", "asked"), [("normal", False), ("latency", True)])
def test_the_alarm_is_raised_only_where_the_daemon_asks_for_it(
    machine: Machine, served: Served, priority: str, asked: bool
) -> None:
    """Others may run while its token is parked: those whom a latency client interrupts stop at the alarm."""
    served.server.set_group("a", priority=priority)
    client = Client(machine, "a", "come-and-go")
    epoch = ctypes.c_uint32.from_address(client.page)
    first, rounds = epoch.value >> 3, client.running.rounds()
    eventually(lambda: client.running.rounds() > rounds + 10 and epoch.value >> 3 > first + 3, 60)  # parked and taken
    alarms = {ctypes.c_uint32.from_address(device).value for device in pages("device")}
    assert (alarms != {0}) == asked
