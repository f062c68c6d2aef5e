"""No gang starves or stands still for long, whatever devices gangs and single programs have in common."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.arbiter.gang_host import DDP, FSDP, MS, SATURATING, START, US, Jobs

# Crossing gangs cannot all have their shares, but never less than half of what each device would give alone.
PART = 0.5
CYCLE = 100 * MS


def mix(seed):
    """Two or three gangs on some of two to four devices, and up to two single programs; (how many devices, jobs)."""
    chance = random.Random(seed)
    devices = chance.randint(2, 4)
    jobs = []
    for _ in range(chance.randint(2, 3)):
        kind = chance.choice([DDP, FSDP])
        kind = replace(kind, kernel=chance.randint(50, 300) * US, host=chance.choice([0, 100, 400]) * US)
        jobs.append((kind, sorted(chance.sample(range(devices), chance.randint(2, devices)))))
    jobs += [(SATURATING, [chance.randrange(devices)]) for _ in range(chance.randint(0, 2))]
    return devices, jobs


@pytest.mark.parametrize("seed", [*range(14), 39, 45])
def test_nobody_starves_or_stands_still_for_long(seed):
    devices, mixed = mix(seed)
    jobs = Jobs(*mixed, devices=devices, seconds=2.0).run()
    for number, (_, on) in enumerate(mixed):
        most = max(sum(device in other for _, other in mixed) for device in on)
        assert jobs.speed(number, START) >= PART / most, mixed
        assert jobs.longest_stall(number, START) <= CYCLE, mixed


@pytest.mark.parametrize("seed", [*range(10), 24, 27])
def test_a_best_effort_gang_takes_nothing_from_the_others(seed):
    """Those beside it had half, and some stood still: its ranks waited for each other in slices of their time."""
    devices, mixed = mix(seed)
    first, others = (*mixed[0], {"priority": "best-effort"}), mixed[1:]
    jobs = Jobs(first, *others, devices=devices, seconds=2.0).run()
    for number, (_, on) in enumerate(others, start=1):
        most = max(sum(device in other for _, other in others) for device in on)
        assert jobs.speed(number, START) >= 0.8 / most, mixed
        assert jobs.longest_stall(number, START) <= CYCLE, mixed
