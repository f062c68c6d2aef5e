"""What the daemon records of a second: rates from counters that grow, waits from what was seen ten times in it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gemlet.daemon.history_moment import DEVICE_COLUMNS, GROUP_COLUMNS
from gemlet.daemon.history_sampling import Moments
from gemlet.daemon.native import DeviceUsage, GroupUsage, Snapshot, uuid_text
from tests.unit.monitor.status_example import example

UUID = bytes(range(16))


def status(*groups):
    [device, *_] = example().devices
    return msgspec.structs.replace(
        example(), devices=(msgspec.structs.replace(device, uuid=uuid_text(UUID), groups=groups),)
    )


@pytest.fixture
def group():
    found = next(group for device in example().devices for group in device.groups if group.clients)
    return replace(found, name="g", used_s=100.0, throttled_s=10.0)


def seen(**fields):
    usage = GroupUsage(name="g", programs=1, **fields)
    return Snapshot(devices=(DeviceUsage(uuid=UUID, groups=(usage,)),))


def taken(moments, *groups, at):
    found, devices = moments.take(status(*groups), at)
    named = {
        name: dict(zip((column.name for column in GROUP_COLUMNS), row, strict=True)) for (_, name), row in found.items()
    }
    return named, [dict(zip((c.name for c in DEVICE_COLUMNS), row, strict=True)) for row in devices.values()]


def test_counters_become_rates(group):
    moments = Moments()
    assert taken(moments, group, at=5.0) == ({}, [])  # of no interval
    groups, [device] = taken(moments, replace(group, used_s=101.0, throttled_s=10.5), at=7.0)
    assert groups["g"]["share"] == 0.5
    assert groups["g"]["throttled"] == 0.25
    assert groups["g"]["min"] == group.min
    assert device["share"] == 0.5
    assert (device["power"], device["temperature"]) == (512.5, 61.0)


def test_waits_are_parts_of_the_samples(group):
    moments = Moments()
    taken(moments, group, at=1.0)
    for snapshot in (
        seen(waiting=1, why="both busy"),
        seen(waiting=1, why="ahead"),
        seen(waiting=0, why="ahead"),
        seen(awaits_memory=True),
    ):
        moments.look(snapshot)
    groups, _ = taken(moments, group, at=2.0)
    waits = {name: part for name, part in groups["g"].items() if name.startswith("waits ") and part}
    assert waits == {"waits both busy": 0.25, "waits ahead": 0.25, "waits memory": 0.25}
    groups, _ = taken(moments, group, at=3.0)
    assert not any(part for name, part in groups["g"].items() if name.startswith("waits "))


def test_what_a_maximum_makes_wait_waits_for_nothing_else(group):
    moments = Moments()
    taken(moments, group, at=1.0)
    for number in range(10):
        moments.look(seen(waiting=1, why="shares") if number < 8 else seen())
    groups, _ = taken(moments, replace(group, throttled_s=10.6), at=2.0)
    assert groups["g"]["throttled"] == pytest.approx(0.6)
    assert groups["g"]["waits shares"] == pytest.approx(0.2)


def test_a_group_without_clients_is_recorded_as_long_as_it_used_something(group):
    moments = Moments()
    taken(moments, group, at=1.0)
    gone = replace(group, programs=0, clients=(), used_s=100.5)
    assert taken(moments, gone, at=2.0)[0]["g"]["share"] == 0.5
    assert taken(moments, gone, at=3.0)[0] == {}


def test_bytes_moved_are_those_since_the_last_moment(group):
    def moved(count):
        return replace(group, moved=count, swapped=2**20, memory_used=2**21)

    moments = Moments()
    taken(moments, moved(2**40), at=1.0)
    groups, _ = taken(moments, moved(2**40 + 2**30), at=3.0)
    assert groups["g"]["moved"] == 2**29
    assert (groups["g"]["swapped"], groups["g"]["resident"]) == (2**20, 2**20)
