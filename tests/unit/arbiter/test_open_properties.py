"""The promises hold whatever programs share the virtual device, and whatever they say of themselves."""

from __future__ import annotations

import math
import statistics

import pytest

from tests.unit.arbiter import mixes
from tests.unit.arbiter.open_device import MS, Shared

SECONDS = 2
STEP = 10 * MS
# A program is behind its promise by the time in which it would have done, at the promised speed, what it lacks.
MOST_BEHIND = 400  # ms
MOSTLY_BEHIND = 250  # ms, in 19 of 20 programs
PART = 0.95  # of its share: hand-overs cost something, too


def promised(members, number):
    """Speed against alone: its minimum, or its part by weight if that is more."""
    return PART * max(members[number][0]["min"], min(1 / len(members), 1 - sum(spec["min"] for spec, _ in members)))


def behind(shared, members, number):
    """The most that a program was behind its promise, in ms."""
    program, promise = members[number][1], promised(members, number)
    step = STEP
    if program.kind == "launch-bound":  # what it did is known at the end of an iteration
        period = program.kernels * max(program.gap, program.kernel) + program.host
        step = -(-max(STEP, 4 * period) // STEP) * STEP
    lack = most = 0.0
    for speed in shared.speeds(number, window=step, start=0):
        lack = max(0.0, lack + (promise - speed) * step / MS)
        most = max(most, lack / promise)
    return most


def behind_of_mix(seed, *, honest):
    programs = mixes.mix(seed, honest=honest)
    # A client that lies about itself cannot be given a minimum of its speed.
    minima = [
        0.0 if program.lie else least
        for program, least in zip(programs, mixes.minima(seed, len(programs)), strict=True)
    ]
    members = [({"min": least}, program) for least, program in zip(minima, programs, strict=True)]
    shared = Shared(*members, seconds=SECONDS)
    return [behind(shared, members, n) for n, program in enumerate(programs) if not program.lie]


@pytest.mark.parametrize("honest", [True, False])
def test_no_promise_is_short_for_long(honest):
    found = sorted(most for seed in range(60) for most in behind_of_mix(seed, honest=honest))
    assert found[-1] <= MOST_BEHIND
    assert found[len(found) * 19 // 20] <= MOSTLY_BEHIND


def test_honest_programs_do_together_what_they_do_under_slicing():
    """One that slicing starves has its promise at the others' expense; on average nothing is lost."""
    totals = []
    for seed in range(40):
        shared = Shared(*mixes.mix(seed, mixes.ANY, 5, honest=True), seconds=SECONDS)
        totals.append(shared.total() / shared.total_sliced())
    assert min(totals) >= 0.85
    assert statistics.mean(totals) >= 1.0


def test_nobody_changes_sides_all_the_time():
    for seed in range(30):
        shared = Shared(*mixes.mix(seed, most=5), seconds=SECONDS)
        for number in range(shared.count):
            assert shared.engagements(number) <= 3 + math.log2(1 + SECONDS * 4), (seed, number)
