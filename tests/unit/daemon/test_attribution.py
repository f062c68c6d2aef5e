"""Whose busy time is: the parts are the whole, whatever groups were charged for and say that they completed."""

from __future__ import annotations

import random

import pytest

from gemlet.daemon.attribution import divide


@pytest.mark.parametrize("seed", range(50))
def test_the_parts_and_the_rest_are_the_whole(seed):
    chance = random.Random(seed)
    for _ in range(200):
        count = chance.randrange(6)
        busy = chance.choice([0.0, chance.random(), 10 * chance.random()])
        charged = [chance.choice([0.0, 12 * chance.random()]) for _ in range(count)]
        completed = [chance.choice([0.0, 12 * chance.random()]) for _ in range(count)]
        outside = chance.random() < 0.3
        parts, rest = divide(busy, charged, completed, outside=outside)
        assert sum(parts) + rest == pytest.approx(busy)
        assert len(parts) == count
        assert all(part >= 0 for part in parts)
        assert rest >= 0
        if not outside and sum(charged) + sum(completed) > 0:
            assert rest == pytest.approx(0.0)
        if sum(charged) + sum(completed) == 0:
            assert rest == pytest.approx(busy)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_completed_is_what_a_group_has(seed):
    """However much others are charged for, as long as the device did all that was completed."""
    chance = random.Random(seed)
    completed = [chance.random() for _ in range(4)]
    charged = [4 * chance.random() for _ in range(4)]
    busy = sum(completed)
    parts, rest = divide(busy, charged, completed, outside=chance.random() < 0.5)
    assert parts == pytest.approx(completed)
    assert rest == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_group_that_completes_more_has_no_less(seed):
    chance = random.Random(seed)
    completed, charged = [chance.random() for _ in range(3)], [2 * chance.random() for _ in range(3)]
    before, _ = divide(2.0, charged, completed, outside=False)
    after, _ = divide(2.0, charged, [completed[0] + 0.5, *completed[1:]], outside=False)
    assert after[0] >= before[0] - 1e-9
