"""What is said of promises: a group is short only where it was owed more, got less and waited."""

from __future__ import annotations

import random

import pytest

from gemlet.monitor.web.minute import NOTICEABLE, judge


def recorded(**values):
    columns = {name.replace("_", " "): value for name, value in values.items()}
    return {"series": [{"device": "GPU-0", "group": "g", "values": columns}, {"device": "GPU-0", "group": None}]}


def row(**values):
    [found] = judge(recorded(**values))
    return found


@pytest.mark.parametrize(
    ("values", "short", "over"),
    [
        ({"share": [0.3] * 3, "target": [0.5] * 3, "min": [0.4] * 3, "waits_ahead": [0.7] * 3}, 0.1, 0.0),
        # it used less, for it did not ask for more
        ({"share": [0.3] * 3, "target": [0.5] * 3, "min": [0.4] * 3, "waits_ahead": [0.0] * 3}, 0.0, 0.0),
        # it had no work for most of the time: nothing was aimed at
        ({"share": [0.01] * 3, "target": [0.0, 0.0, 0.1], "min": [0.4] * 3, "waits_memory": [0.5] * 3}, 0.0, 0.0),
        # its memory was away
        ({"share": [0.0] * 3, "target": [0.5] * 3, "min": [0.4] * 3, "waits_memory": [1.0] * 3}, 0.4, 0.0),
        # within the error
        ({"share": [0.38] * 3, "target": [0.5] * 3, "min": [0.4] * 3, "waits_ahead": [0.6] * 3}, 0.0, 0.0),
        # used beyond its maximum; and a maximum that was lowered meanwhile
        ({"share": [0.4] * 2, "target": [0.3] * 2, "min": [0.0] * 2, "max": [0.3] * 2}, 0.0, 0.1),
        ({"share": [0.4, 0.2], "target": [0.4, 0.2], "min": [0.0] * 2, "max": [0.4, 0.2]}, 0.0, 0.0),
        # seconds in which the group was not there do not count
        ({"share": [None, 0.3], "target": [None, 0.5], "min": [None, 0.4], "waits_ahead": [None, 0.7]}, 0.1, 0.0),
        ({}, 0.0, 0.0),
    ],
)
def test_what_is_short_and_over(values, short, over):
    found = row(**values)
    assert (found["short"], found["over"]) == (pytest.approx(short), pytest.approx(over))


def test_reasons_are_parts_of_the_time():
    found = row(share=[0.5], waits_ahead=[0.25], waits_memory=[0.0], throttled=[0.1])
    assert (found["waited"], found["throttled"]) == ({"ahead": 0.25}, 0.1)


@pytest.mark.parametrize("seed", range(20))
def test_a_group_that_got_what_it_is_owed_is_never_short_and_one_that_waits_without_it_always_is(seed):
    chance = random.Random(seed)
    for _ in range(100):
        least, aim, used = chance.random(), chance.random(), chance.random()
        owed = min(least, aim)
        found = row(share=[used], target=[aim], min=[least], waits_ahead=[1 - used])
        assert (found["short"] > 0) == (min(owed - used, 1 - used) > NOTICEABLE)
        assert found["short"] <= owed
