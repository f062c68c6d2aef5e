"""Slots of a cycle for gangs, whatever devices they have in common."""

from __future__ import annotations

import random

import pytest

from gemlet._native import timetable
from tests.unit.arbiter.gang_host import MS

CYCLE, SHORTEST = 100 * MS, 2 * MS


def slots_of(*wishes, free_from=None, devices=4):
    """Wishes: (devices, share, least, may grow)."""
    return timetable(list(wishes), free_from or [0] * devices, CYCLE, SHORTEST)


def lengths_of(slots, count):
    lengths = [0] * count
    for wish, begin, until in slots:
        lengths[wish] = until - begin
    return lengths


def test_gangs_on_the_same_devices_divide_the_cycle():
    assert slots_of(([0, 1], 0.75, 0.0, False), ([0, 1], 0.25, 0.0, False)) == [
        (0, 0, 75 * MS),
        (1, 75 * MS, 100 * MS),
    ]


def test_gangs_that_share_no_device_run_at_the_same_time():
    slots = slots_of(([0, 1], 0.6, 0.0, False), ([2, 3], 0.7, 0.0, False))
    assert [(wish, begin) for wish, begin, _ in slots] == [(0, 0), (1, 0)]


def test_three_that_cross_have_a_third_each():
    slots = slots_of(([0, 1], 0.5, 0.0, False), ([1, 2], 0.5, 0.0, False), ([0, 2], 0.5, 0.0, False))
    assert lengths_of(slots, 3) == pytest.approx([CYCLE / 3] * 3, rel=0.001)


def test_minima_come_before_what_others_wish_beyond_theirs():
    slots = slots_of(([0, 1], 0.6, 0.6, False), ([1, 2], 0.4, 0.0, False), ([0, 2], 0.4, 0.0, False))
    assert lengths_of(slots, 3) == pytest.approx([0.6 * CYCLE, 0.2 * CYCLE, 0.2 * CYCLE], rel=0.001)


def test_minima_that_do_not_fit_together_are_scaled_down_alike():
    slots = slots_of(([0, 1], 0.9, 0.9, False), ([1, 2], 0.6, 0.6, False))
    assert lengths_of(slots, 2) == pytest.approx([0.6 * CYCLE, 0.4 * CYCLE], rel=0.001)


def test_what_nobody_else_wants_goes_to_those_that_may_grow():
    slots = slots_of(([0, 1], 0.3, 0.0, True), ([0, 1], 0.3, 0.0, False))
    assert slots == [(0, 0, 30 * MS), (1, 30 * MS, 60 * MS)]
    slots = slots_of(([0, 1], 0.3, 0.0, False), ([0, 1], 0.3, 0.0, True))
    assert slots == [(0, 0, 30 * MS), (1, 30 * MS, 100 * MS)]


def test_a_device_that_is_taken_is_waited_for():
    assert slots_of(([0, 1], 0.3, 0.0, False), free_from=[0, 20 * MS, 0, 0]) == [(0, 20 * MS, 50 * MS)]


def test_any_wishes_give_slots_that_never_overlap_and_no_wish_starves():
    for seed in range(400):
        chance = random.Random(seed)
        devices = chance.randint(2, 8)
        count = chance.randint(1, 6)
        wishes = []
        for _ in range(count):
            on = sorted(chance.sample(range(devices), chance.randint(2, devices)))
            share = chance.uniform(0.1, 1.0)
            wishes.append((on, share, share * chance.choice([0.0, 0.0, 0.5, 1.0]), chance.random() < 0.5))
        free_from = [chance.choice([0, 0, chance.randint(0, 30) * MS]) for _ in range(devices)]
        slots = timetable(wishes, free_from, CYCLE, SHORTEST)
        assert slots == timetable(wishes, free_from, CYCLE, SHORTEST)
        assert slots == sorted(slots, key=lambda slot: (slot[1], slot[0]))
        assert sorted(wish for wish, _, _ in slots) == sorted({wish for wish, _, _ in slots})
        for wish, begin, until in slots:
            assert 0 <= begin < until <= CYCLE
            assert all(begin >= free_from[device] for device in wishes[wish][0])
            for other, start, end in slots:
                if other != wish and set(wishes[other][0]) & set(wishes[wish][0]):
                    assert until <= start or end <= begin
        # Minima may leave nothing to the others; else each has its part.
        if all(least == 0.0 for _, _, least, _ in wishes):
            assert len(slots) == count
