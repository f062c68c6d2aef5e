"""What the daemon tells of the ring of steps, and to whom."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.daemon import tracing
from gemlet.errors import Refused

NAMES = {11: "train.py"}


class Ring:
    """A server with these steps; ``forgotten`` of them are gone."""

    def __init__(self, steps, *, forgotten=0):
        self.steps, self.forgotten, self.reads = steps, forgotten, 0

    def trace(self, since, most):
        self.reads += 1
        first = max(since, self.forgotten)
        return first, self.steps[first : first + most]

    def trace_at(self, at):
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


def read(ring, *, group="a", uid=None, after=None):
    asked = tracing.Asked(group=group, seconds=10.0, after=after, uid=uid)
    devices = {0: "NVIDIA H200", 1: "NVIDIA H200"}
    return asyncio.run(tracing.read(ring, asked, names=NAMES, devices=devices, simulated=True))


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
    rest = read(ring, after=found.next)
    assert not rest.lost
    assert rest.next == 5 * tracing.PART
    assert read(ring, after=3).lost


def test_a_group_without_programs():
    with pytest.raises(Refused, match="no program of group d has used a device lately"):
        read(Ring(STEPS), group="d")
