"""Counters by label: they never fall, there are few, and their parts of a busy device are all of it."""

from __future__ import annotations

import random

import pytest

from gemlet.daemon import totals
from gemlet.daemon.native import DeviceUsage, GroupUsage, Snapshot
from gemlet.daemon.recent_usage import RecentUsage, Used
from gemlet.daemon.totals import OTHERS, OUTSIDE, UNNAMED, Totals

SECOND = 1_000_000_000
GPUS = (bytes(16), bytes(15) + b"\1")


def named(name):
    return not name.startswith("python-")


class Machine:
    """Groups that come, use a device and go, each time as a random choice says."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.groups: dict[tuple[int, str], list[int]] = {}  # used, throttled, launches, requests
        self.now = 0
        self.recent_usage = RecentUsage()
        self.totals = Totals()

    def step(self):
        chance = self.chance
        self.now += SECOND // 10
        where = chance.randrange(2), chance.choice(["a", "b", "c", "python-1", "python-2", "python-3"])
        if where not in self.groups:
            self.groups[where] = [0, 0, 0, 0]
        elif chance.random() < 0.2:
            del self.groups[where]
        for counters in self.groups.values():
            if chance.random() < 0.1:  # the server corrects what it charged
                counters[0] = max(0, counters[0] - chance.randrange(SECOND // 200))
            for n in range(4):
                counters[n] += chance.randrange(SECOND // 10) if n < 2 else chance.randrange(5)
        self.totals.add(self.snapshot(), self.recent_usage.total, named)
        self.recent_usage.add(self.snapshot())

    def snapshot(self):
        def devices():
            for index, uuid in enumerate(GPUS):
                groups = tuple(
                    GroupUsage(
                        name=name,
                        used_ns=used,
                        throttled_ns=throttled,
                        latencies=((30, requests),) if requests else (),
                        latency_sum_ns=requests * 1000,
                        launches=launches,
                        work_ns=used * 3 // 4,
                    )
                    for (device, name), (used, throttled, launches, requests) in self.groups.items()
                    if device == index
                )
                yield DeviceUsage(uuid=uuid, index=index, groups=groups)

        return Snapshot(now_ns=self.now, devices=tuple(devices()))


def counters(of):
    return {
        (one.device, one.label): (
            one.used_s,
            one.busy_s,
            one.throttled_s,
            one.launches,
            one.latency.requests if one.latency else 0,
        )
        for one in of.labels()
    }


@pytest.mark.parametrize("seed", range(8))
def test_no_counter_falls_and_the_parts_are_the_whole(seed):
    machine = Machine(seed)
    before: dict[tuple[int, str], tuple[float, ...]] = {}
    busy_s, parts = [0.0, 0.0], [0.0, 0.0]
    for _ in range(300):
        machine.step()
        if machine.chance.random() < 0.3:
            parts = [machine.chance.random(), machine.chance.choice([0.0, 0.5, 1.0])]
            outside = {GPUS[0]} if machine.chance.random() < 0.3 else set()
            machine.totals.spread(1.0, dict(zip(GPUS, parts, strict=True)), outside)
            busy_s = [all_ + part for all_, part in zip(busy_s, parts, strict=True)]
        now = counters(machine.totals)
        assert before.keys() <= now.keys()
        for key, values in before.items():
            assert all(new >= old for new, old in zip(now[key], values, strict=True)), key
        before = now
        for index, uuid in enumerate(GPUS):
            used, busy = machine.totals.device(uuid)
            of_device = [values for (device, _), values in now.items() if device == index]
            assert sum(values[0] for values in of_device) == pytest.approx(used)
            assert sum(values[1] for values in of_device) == pytest.approx(busy)
            # What nobody is seen to have used waits for the next look.
            assert any(busy_s[index] - busy == pytest.approx(late, abs=1e-6) for late in (0.0, parts[index]))
    assert {label for _, label in before} <= {"a", "b", "c", UNNAMED, OUTSIDE}
    assert before[0, UNNAMED][0] > 0


def one(**used):
    groups = tuple(GroupUsage(name=name, used_ns=round(s * SECOND)) for name, s in used.items())
    return Snapshot(devices=(DeviceUsage(uuid=GPUS[0], groups=groups),))


def total(_key, group):
    return Used(group.used_ns, 0, 0)


def busy_of(found):
    return {one.label: round(one.busy_s, 6) for one in found.labels()}


@pytest.mark.parametrize(
    ("part", "outside", "parts"),
    [
        (0.9, False, {"a": 0.6, "b": 0.3}),  # they used 0.75 s of a second: that is all who could
        (0.5, False, {"a": 1 / 3, "b": 1 / 6}),  # they are charged for pauses, too
        (0.9, True, {"a": 0.5, "b": 0.25, OUTSIDE: 0.15}),
        (0.3, True, {"a": 0.2, "b": 0.1}),
        (None, False, {"a": 0.0, "b": 0.0}),
    ],
)
def test_whose_the_busy_time_is(part, outside, parts):
    found = Totals()
    found.add(one(a=0.5, b=0.25), total, named)
    found.spread(1.0, {GPUS[0]: part}, {GPUS[0]} if outside else set())
    assert busy_of(found) == {label: pytest.approx(value, abs=1e-6) for label, value in parts.items()}
    if part is None:
        return
    own = sum(value for label, value in busy_of(found).items() if label != OUTSIDE)
    # Nobody used anything since: the driver speaks of the second before, once. Then there is nobody else.
    for so_far in (0.0, 0.0, 0.5):
        found.spread(1.0, {GPUS[0]: 0.5}, set())
        last = busy_of(found)
        assert last["a"] + last["b"] == pytest.approx(own + 0.5)
        assert last.get(OUTSIDE, 0.0) == pytest.approx(parts.get(OUTSIDE, 0.0) + so_far)
        assert sum(last.values()) == pytest.approx(found.device(GPUS[0])[1])


def test_what_a_group_used_before_it_was_seen_is_its_own():
    """The driver is asked at another moment than the groups: a program may have begun between the two."""
    found = Totals()
    found.add(one(a=0.0), total, named)
    found.spread(1.0, {GPUS[0]: 0.8}, set())
    assert busy_of(found) == {"a": 0.0}
    assert found.device(GPUS[0])[1] == 0.0, "the device's seconds are those of its labels at any time"
    found.add(one(a=0.9), total, named)
    found.spread(1.0, {GPUS[0]: 1.0}, set())
    assert busy_of(found) == {"a": 1.8}
    assert found.device(GPUS[0])[1] == pytest.approx(1.8)


def test_labels_are_few_and_those_of_groups_that_have_gone_make_room(monkeypatch):
    monkeypatch.setattr(totals, "MOST", 4)
    found = Totals()
    found.add(one(a=1, b=1, c=1, d=1), total, named)
    found.add(one(a=1, b=1, c=1, d=1, e=2, f=3), total, named)
    labels = {entry.label: entry for entry in found.labels()}
    assert set(labels) == {"a", "b", "c", "d", OTHERS}
    assert (labels[OTHERS].groups, labels[OTHERS].used_s) == (("e", "f"), 5.0)
    found.add(one(a=1, d=1, f=4), total, named)  # b and c went
    found.add(one(a=1, d=1, f=4, b=2, g=1), total, named)
    labels = {entry.label: entry for entry in found.labels()}
    assert labels["b"].used_s == 3.0  # it has its label still
    assert "c" not in labels  # g has its place
    assert labels[OTHERS].used_s == 6.0
    assert found.device(GPUS[0])[0] == 13.0


def test_a_program_that_is_charged_without_working_has_little_of_the_busy_time():
    """As measured: one that was stopped in its turn was charged for all of it, and the two that worked for little."""
    found = Totals()
    charged = {"stopped": 10.4, "train": 4.3, "held": 6.3}
    worked = {"stopped": 0.0, "train": 9.3, "held": 0.1}
    found.add(one(**charged), lambda key, group: Used(group.used_ns, 0, round(worked[key[1]] * SECOND)), named)
    found.spread(10.3, {GPUS[0]: 1.0}, set())
    parts = busy_of(found)
    assert sum(parts.values()) == pytest.approx(10.3)
    assert parts["train"] == pytest.approx(9.3)
    assert parts["stopped"] < 0.6


def test_a_program_that_writes_what_it_pleases_takes_nothing_from_those_that_work():
    found = Totals()
    for second in (1, 2):
        found.add(
            one(liar=0.1 * second, other=0.9 * second),
            lambda key, group, second=second: Used(
                group.used_ns, 0, second * 2**61 if key[1] == "liar" else group.used_ns
            ),
            named,
        )
        found.spread(1.0, {GPUS[0]: 1.0}, set())
    assert busy_of(found) == {"liar": pytest.approx(0.2), "other": pytest.approx(1.8)}


def test_a_long_kernel_counts_when_it_ends():
    found = Totals()
    for second in range(1, 6):
        found.add(
            one(long=float(second), short=0.01 * second),
            lambda key, group, second=second: Used(
                group.used_ns, 0, (5 * SECOND if second == 5 else 0) if key[1] == "long" else group.used_ns
            ),
            named,
        )
        found.spread(1.0, {GPUS[0]: 1.0}, set())
    assert busy_of(found)["long"] > 4.9


@pytest.mark.parametrize("name", ["a", "python-1"])
def test_nothing_is_left_of_devices_that_programs_make_up_one_after_the_other(name):
    found = Totals()
    for number in range(1000):
        made_up = DeviceUsage(uuid=number.to_bytes(16), index=1, groups=(GroupUsage(name=name, used_ns=number),))
        real = DeviceUsage(uuid=GPUS[1], index=0, groups=(GroupUsage(name="b", used_ns=number * SECOND),))
        found.add(Snapshot(now_ns=number, devices=(real, made_up) if number != 1 else (real,)), total, named)
    assert sorted(label.label for label in found.labels()) == sorted(["b", name if named(name) else UNNAMED])
    assert found.device(GPUS[1])[0] == 999.0
    assert found.device(bytes(16)) == (0.0, 0.0)
