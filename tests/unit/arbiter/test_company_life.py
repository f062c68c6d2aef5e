"""Members of a company come, go, end and change."""

from __future__ import annotations

import random

import pytest

from tests.unit.arbiter.machine import Machine

SPECS = [
    {},
    {"min": 0.3},
    {"min": 0.5, "weight": 3},
    {"max": 0.3},
    {"max": 0.1},
    {"sm": 0.4},
    {"workload": "alone"},
    {"workload": "compute"},
    {"workload": "memory"},
    {"priority": "latency"},
    {"priority": "latency", "min": 0.2},
    {"priority": "best-effort"},
    {"priority": "best-effort", "min": 0.1},
]


class Life:
    """Members of a company come, go, die, pause and get other specs, as chance will have it."""

    def __init__(self, scene, seed):
        self.chance = random.Random(seed)
        self.m = Machine(scene, mps=seed % 3 == 0)
        self.spec = dict.fromkeys(range(1, self.chance.randint(3, 6) + 1), SPECS[0])
        self.here = set(self.spec)
        for number in self.spec:
            self.m.add(number, self.chance.choice([0.15, 0.2, 0.3]))
        self.m.run(3000)

    def happens(self):
        m, number, what = self.m, self.chance.choice(list(self.spec)), self.chance.random()
        here = number in self.here
        if what < 0.25:
            self.spec[number] = self.chance.choice(SPECS)
            m.s.group(f"g{number}", **self.spec[number])
        elif what < 0.35 and here and len(self.here) > 2:
            m.leave(number)
            self.here.discard(number)
        elif what < 0.5 and not here:
            m.told[number] = 0.0
            m.add(number, self.chance.choice([0.15, 0.2, 0.3]))
            self.here.add(number)
        elif what < 0.6 and here:
            m.pauses(number, self.chance.choice([0.5, 5, 50]), self.chance.choice([2.1, 5, 30]))
        elif what < 0.7:
            m.bursts.pop(number, None)
        elif what < 0.75 and number in m.s.holders:
            m.tell()
            m.s.stop(number, self.chance.choice(["exit", "idle", "revoked"]))
            m.s.want(number)

    def passes(self, ms):
        m = self.m
        used = {n: m.used(n) for n in self.spec}
        held = {n: m.apart[n] + m.beside[n] for n in self.spec}
        m.run(m.s.ms + ms)
        used = {n: m.used(n) - before for n, before in used.items()}
        held = {n: m.apart[n] + m.beside[n] - before for n, before in held.items()}
        assert sum(used.values()) <= 1.01 * ms + 16
        if ms < 1000:
            return
        for n in self.here:
            spec = self.spec[n]
            if spec.get("max", 1.0) < 1.0:
                assert held[n] <= used[n] + 5, "ran beside another, and was charged for a part"
            entitled = spec.get("priority") != "best-effort" or spec.get("min")
            assert held[n] > 1 or n in m.bursts or not entitled, "starved"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_a_company(scene, seed):
    """Nobody starves, no maximum is passed, all time is charged once, and nothing is looked at without end."""
    life = Life(scene, seed)
    while life.m.s.ms < 8_000:
        life.happens()
        life.passes(life.chance.choice([1, 7, 30, 300, 1500]))
