"""Neighbours that keep to what is agreed, change and come and go all the time, each a function of its seed alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from gemlet.model import GroupSpec, Priority
from gemlet.simulate.workload import SECOND, ProgramSpec
from tests.unit.arbiter.games import MS, between, honest_program, of_its_minimum, player_program

if TYPE_CHECKING:
    from gemlet.simulate.engine import Engine

MIXED = ["normal", "latency", "best-effort"]


class Newcomers:
    """One honest program with a minimum, of group 'honest', beside some that stay, of groups that may be changed, and
    beside some that come, each in a group of its own, and go with it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seed = seed
        self.least = chance.choice([0.3, 0.5, 0.8])
        self.honest = (GroupSpec(name="honest", min=self.least), (honest_program(chance),))
        count = chance.choice([1, 2, 3, 6])
        self.players = [self._player(number, count) for number in range(count)]

    def _lawful(self) -> ProgramSpec:
        return replace(player_program(self.chance), lie="", overrun=1.0)

    def _player(self, number: int, count: int) -> tuple[GroupSpec, tuple[ProgramSpec, ...]]:
        chance = self.chance
        least = chance.choice([0.0, 0.0, (1 - self.least) / count])
        group = GroupSpec(
            name=f"player{number}",
            min=least,
            max=chance.choice([1.0, max(least, 0.4)]),
            weight=chance.choice([1.0, 8.0, 0.1]),
            priority=Priority(chance.choice(["normal", *MIXED])),
        )
        return group, tuple(self._lawful() for _ in range(chance.choice([1, 1, 3])))

    def of_its_minimum(self, seconds: int) -> list[float]:
        """The honest program's speed in each second after the first, 1 being its minimum."""
        begins = (begin for begin in (self._change, self._come) if self.chance.random() < 0.6)
        return of_its_minimum(self, seconds, begins)

    def _change(self, engine: Engine) -> None:
        chance, period = self.chance, between(self.chance, 2 * MS, 300 * MS)

        def change() -> None:
            group, _ = chance.choice(self.players)
            weight, priority = chance.choice([0.1, 1.0, 8.0]), Priority(chance.choice(MIXED))
            most, least = chance.choice([1.0, max(group.min, 0.2)]), chance.choice([0.0, group.min])
            engine.set_group(replace(group, weight=weight, priority=priority, max=most, min=least))
            engine.at(engine.now + period, change)

        engine.at(SECOND // 2 + chance.randrange(MS), change)

    def _come(self, engine: Engine) -> None:
        chance, period = self.chance, between(self.chance, 8 * MS, 200 * MS)
        priority, most = Priority(chance.choice(MIXED)), chance.choice([1, 1, 3])
        there: list[tuple[int, str]] = []
        count = 0

        def come() -> None:
            nonlocal count
            while len(there) >= most:
                number, name = there.pop(0)
                engine.exit(engine.client(number))
                engine.remove_group(name)
            count += 1
            name = f"new{count}"
            engine.set_group(GroupSpec(name=name, priority=priority))
            there.append((engine.add(name, self._lawful()).number, name))
            engine.at(engine.now + period, come)

        engine.at(SECOND // 2 + chance.randrange(MS), come)
