"""Random mixes of programs, each a function of its seed alone.

Not hypothesis: its examples depend on which modules the process has loaded, so they differ from worker to worker.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gemlet.simulate.workload import MICROSECOND, MILLISECOND, SECOND, ProgramSpec

US, MS = MICROSECOND, MILLISECOND
LIES = ["", "", "", "", "silent", "boasts", "awaited"]


def _kernel(chance: random.Random) -> int:
    return chance.choice([chance.randint(5, 50), chance.randint(5, 400)]) * US


def saturating(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(kind="saturating", kernel=_kernel(chance), lie=chance.choice(LIES))


def launch_bound(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(
        kind="launch-bound",
        kernels=chance.randint(1, 300),
        kernel=_kernel(chance),
        gap=chance.randint(10, 80) * US,
        host=chance.randint(0, 2000) * US,
        lie=chance.choice(LIES),
    )


def bursty(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(
        kind="bursty",
        kernel=_kernel(chance),
        work=chance.randint(1, 30) * MS,
        think=chance.randint(1, 30) * MS,
        lie=chance.choice(LIES),
    )


def changing(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(kind="changing", every=SECOND, kernel=_kernel(chance))


def requests(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(
        kind=chance.choice(["periodic", "poisson"]),
        kernel=_kernel(chance),
        rate=float(chance.randint(5, 200)),
        work=chance.randint(100, 2000) * US,
    )


def thinking(chance: random.Random) -> ProgramSpec:
    return ProgramSpec(kind="think", on=SECOND // 2, off=SECOND // 2, kernel=_kernel(chance))


STEADY = (saturating, launch_bound)
ANY = (saturating, saturating, launch_bound, launch_bound, bursty, changing, requests, thinking)


def mix(seed: int, kinds=STEADY, most: int = 4, *, honest: bool = False) -> list[ProgramSpec]:
    """Two to ``most`` programs."""
    chance = random.Random(seed)
    programs = [chance.choice(kinds)(chance) for _ in range(chance.randint(2, most))]
    return [replace(program, lie="") for program in programs] if honest else programs


def minima(seed: int, count: int) -> list[float]:
    """That many minima, which together leave something."""
    chance = random.Random(-1 - seed)
    return [chance.choice([0.0, 0.0, 0.1, 0.25 if count <= 3 else 0.1]) for _ in range(count)]
