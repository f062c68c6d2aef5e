"""Neighbours that play for more than their share, each a function of its seed alone.

They lie, overrun their turns, work and pause at every length, come in several groups and classes, and go from one
group to another.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet.model import GroupSpec, Priority
from gemlet.simulate.engine import Engine, run_alone
from gemlet.simulate.workload import MICROSECOND, MILLISECOND, SECOND, ProgramSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

US, MS = MICROSECOND, MILLISECOND
LIES = ["", "", "silent", "boasts", "awaited", "idle"]


def between(chance: random.Random, least: int, most: int) -> int:
    """Every order of magnitude as likely as the next."""
    return int(math.exp(chance.uniform(math.log(least), math.log(most))))


def honest_program(chance: random.Random) -> ProgramSpec:
    kernel = between(chance, 10 * US, 400 * US)
    return chance.choice(
        [
            ProgramSpec(kernel=kernel),
            ProgramSpec(
                kind="launch-bound",
                kernel=kernel,
                kernels=chance.randint(20, 300),
                gap=chance.randint(5, 60) * US,
                host=between(chance, 20 * US, 5 * MS),
            ),
            ProgramSpec(
                kind="bursty",
                kernel=kernel,
                work=between(chance, MS, 40 * MS),
                think=between(chance, 50 * US, 20 * MS),
            ),
        ]
    )


def player_program(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(
        kind=chance.choice(["bursty", "saturating"]),
        kernel=between(chance, 5 * US, 1500 * US),
        work=between(chance, 200 * US, 50 * MS),
        think=between(chance, 20 * US, 60 * MS),
        lie=chance.choice(LIES),
        overrun=chance.choice([1.0, 1.0, 0.95, 0.8]),
    )


@dataclass
class Game:
    """One honest program with a minimum, of group 'honest', and those who play against it."""

    seed: int

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        self.least = chance.choice([0.2, 0.3, 0.5, 0.7, 0.8])
        self.honest = (GroupSpec(name="honest", min=self.least), (honest_program(chance),))
        count = chance.choice([1, 1, 1, 2, 3, 6])
        self.players = []
        for number in range(count):
            least = chance.choice([0.0, 0.0, (1 - self.least) / count])
            group = GroupSpec(
                name=f"player{number}",
                min=least,
                max=chance.choice([1.0, 1.0, max(least, 0.4)]),
                weight=chance.choice([1.0, 1.0, 8.0, 0.1]),
                priority=Priority(chance.choice(["normal", "normal", "latency", "latency", "best-effort"])),
            )
            self.players.append((group, tuple(player_program(chance) for _ in range(chance.choice([1, 1, 1, 2, 4])))))
        self.hops = chance.random() < 0.3

    def of_its_minimum(self, seconds: int) -> list[float]:
        """The honest program's speed in each second after the first, 1 being its minimum."""
        return of_its_minimum(self, seconds, [self._hop] if self.hops else [])

    def _hop(self, engine: Engine) -> None:
        """New programs come again and again in place of those before, each in a group by chance."""
        period = between(self.chance, 3 * MS, 300 * MS)
        present = []

        def hop() -> None:
            if present:
                engine.exit(present.pop())
            group, _ = self.chance.choice(self.players)
            present.append(engine.add(group.name, player_program(self.chance)))
            engine.at(engine.now + period, hop)

        engine.at(SECOND // 2, hop)


def of_its_minimum(game: Any, seconds: int, begins: Iterable[Callable[[Engine], None]]) -> list[float]:
    """The honest program's speed in each second after the first, 1 being its minimum, beside the players and what
    begins then."""

    def workload(*groups: tuple[GroupSpec, tuple[ProgramSpec, ...]]) -> Workload:
        return Workload(groups=groups, duration=seconds * SECOND, seed=game.seed)

    engine = Engine(workload(game.honest, *game.players))
    for begin in begins:
        begin(engine)
    alone = run_alone(workload(game.honest), 0)
    return [speed / game.least for speed in engine.run().speeds(0, alone, SECOND, start=SECOND)]
