"""What the daemon tells of the ring of steps, and to whom."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gemlet.daemon import tracing
from gemlet.errors import Refused
from gemlet.monitor.reader import read_traced

NAMES = {11: "train.py"}
NOW = 20_000_000_000  # by the machine's clock, which need not be this process's


class Ring:
    """A server with these steps; ``forgotten`` of them are gone."""

    def __init__(self, steps, *, forgotten=0):
        self.steps, self.forgotten, self.reads = steps, forgotten, 0

    def clock(self):
        return NOW

    def trace(self, since, most):
        self.reads += 1
        first = max(since, self.forgotten)
        found = self.steps[first : first + most]
        return found, first + len(found), first > since

    def trace_at(self, at):
        if at == tracing.NEVER:
            return len(self.steps), False
        return self.forgotten, self.forgotten > 0

    def traced(self):
        def entry(client, group, uid, device, state="runs"):
            place = {"client": client, "pid": 10 + client, "uid": uid, "command": "python", "group": group}
            return place | {"device": device, "state": state, "why": "shares"}

        return [
            entry(1, "a", 1000, 0),
            entry(2, "b", 1001, 0),
            entry(3, "c", 1000, 1),
            entry(4, "a", 1000, 0, "gone"),
            entry(5, "b", 1001, 0, "gone"),
        ]


def read(ring, *, group="a", uid=None, after=None, simulated=True):
    asked = tracing.Asked(group=group, seconds=10.0, after=after, uid=uid)
    devices = {0: "NVIDIA H200", 1: "NVIDIA H200"}
    return asyncio.run(tracing.read(ring, asked, names=NAMES, devices=devices, simulated=simulated))


STEPS = [
    (1, 1, "request", 0),
    (2, 2, "grant", -1),
    (3, 3, "grant", -1),
    (4, 2, "standing", 2),
    (5, 4, "leaves", 0),
    (6, 2, "served", 7),
]


def test_all_that_happened_on_the_devices_of_the_group():
    found = read(Ring(STEPS))
    assert [step[0] for step in found.steps] == [1, 2, 4, 5, 6]
    assert (found.begin_ns, found.end_ns) == (NOW - 10_000_000_000, NOW)
    # Who left before is not named.
    assert [client.client for client in found.clients] == [1, 2, 4]
    assert [client.name for client in found.clients] == ["train.py", "", ""]
    assert (found.devices, found.lost, found.next) == ({"0": "NVIDIA H200"}, False, 6)


def test_another_users_programs_only_as_the_status_has_them():
    assert [step[0] for step in read(Ring(STEPS), uid=1000).steps] == [1, 4, 5]
    assert [step[0] for step in read(Ring(STEPS), uid=1001).steps] == [2, 4, 5, 6]


def test_many_steps_are_read_in_parts_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(tracing, "MOST", 3 * tracing.PART)
    ring = Ring([(n, 1, "update", 0) for n in range(5 * tracing.PART)], forgotten=10)
    found = read(ring)
    assert ring.reads == 3
    assert found.lost
    assert (found.next, len(found.steps)) == (10 + 3 * tracing.PART, 3 * tracing.PART)
    assert found.end == 5 * tracing.PART
    rest = read(ring, after=found.next)
    assert not rest.lost
    assert rest.next == rest.end == 5 * tracing.PART
    assert read(ring, after=10**9).next == rest.end  # a number of another daemon
    assert read(ring, after=3).lost


def test_steps_that_are_not_shown_count_as_well(monkeypatch):
    monkeypatch.setattr(tracing, "MOST", tracing.PART)
    ring = Ring([(n, 2, "update", 0) for n in range(5 * tracing.PART)])
    found = read(ring, uid=1000)
    assert (ring.reads, found.steps, found.next, found.end) == (1, [], tracing.PART, 5 * tracing.PART)


class Daemon:
    """A connection to a daemon whose ring goes on by ``more`` steps a question."""

    def __init__(self, ring, *, more):
        self.ring, self.more, self.answers = ring, more, 0

    def call(self, op, *, group, seconds, after=None):
        assert op == "trace"
        self.answers += 1
        found = msgspec.to_builtins(read(self.ring, group=group, after=after))
        last = len(self.ring.steps)
        self.ring.steps += [(n, 1, "update", 0) for n in range(last, last + self.more)]
        return found


def test_the_whole_ring_is_read_answer_by_answer(monkeypatch):
    monkeypatch.setattr(tracing, "MOST", 1000)
    ring = Ring([(n, 1, "update", 0) for n in range(4500)], forgotten=10)
    daemon = Daemon(ring, more=2000)  # faster than it is read
    found = read_traced(daemon, "a", seconds=10.0)
    assert daemon.answers == 5
    assert [step[0] for step in found.steps][:4490] == list(range(10, 4500))
    assert found.lost
    assert found.next == 10 + len(found.steps)
    rest = read_traced(daemon, "a", seconds=10.0, after=found.next)
    assert not rest.lost
    assert rest.steps[0][0] == found.next


def test_what_is_forgotten_between_two_answers_is_said(monkeypatch):
    monkeypatch.setattr(tracing, "MOST", 1000)
    ring = Ring([(n, 1, "update", 0) for n in range(3000)])
    daemon = Daemon(ring, more=0)
    assert not read_traced(daemon, "a", seconds=10.0).lost
    call = daemon.call

    def slow(*arguments, **named):
        found = call(*arguments, **named)
        ring.forgotten = 1500
        return found

    daemon.call = slow
    found = read_traced(daemon, "a", seconds=10.0)
    assert found.lost
    assert [step[0] for step in found.steps] == [*range(1000), *range(1500, 3000)]


@pytest.mark.parametrize("simulated", [False, True])
def test_a_group_without_programs(simulated):
    with pytest.raises(Refused, match="no program of group d has used a device lately") as caught:
        read(Ring(STEPS), group="d", simulated=simulated)
    assert ("--simulate" in caught.value.hint) is simulated, "the daemon that was asked"
