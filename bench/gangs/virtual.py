"""Models of trainings and of a generator on virtual devices: with gangs, without, by time slicing, alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.config.quantities import MICROSECOND, MILLISECOND, SECOND
from gemlet.model import Gang, GroupSpec
from gemlet.simulate.engine import NO_ARBITER
from gemlet.simulate.host import Host, HostWorkload, Job, run_job_alone
from gemlet.simulate.workload import ProgramSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

US, MS = MICROSECOND, MILLISECOND
KINDS = {
    "DDP": ProgramSpec(kind="ranks", kernels=20, kernel=100 * US, gap=5 * US, collective=500 * US, host=100 * US),
    "FSDP": ProgramSpec(
        kind="ranks", kernels=5, kernel=100 * US, gap=5 * US, layers=8, collective=200 * US, host=100 * US
    ),
    "tensor": ProgramSpec(
        kind="ranks", kernels=4, kernel=50 * US, gap=5 * US, layers=16, collective=30 * US, host=60 * US
    ),
    "single": ProgramSpec(kernel=200 * US),
}
START = SECOND // 2
HEAD = ("case", "slicing", "each device", "gangs", "worst second", "longest stall")


@dataclass(frozen=True)
class Case:
    """Jobs: (kind, devices, minimum)."""

    name: str
    jobs: Sequence[tuple[str, tuple[int, ...], float]]
    devices: int = 2


CASES = (
    *(Case(f"2 x {kind}", [(kind, (0, 1), 0.0)] * 2) for kind in ("DDP", "FSDP", "tensor")),
    Case("DDP, tensor", [("DDP", (0, 1), 0.0), ("tensor", (0, 1), 0.0)]),
    Case("2 x FSDP, 75/25", [("FSDP", (0, 1), 0.75), ("FSDP", (0, 1), 0.25)]),
    Case("DDP, a single on each", [("DDP", (0, 1), 0.0), ("single", (0,), 0.0), ("single", (1,), 0.0)]),
    Case("crossing", [("DDP", (0, 1), 0.0), ("FSDP", (1, 2), 0.0), ("DDP", (0, 2), 0.0)], 3),
    Case("2 x FSDP on four", [("FSDP", (0, 1, 2, 3), 0.0)] * 2, 4),
)


def workload(case: Case, seconds: float, *, policy: str = "fair", gang: Gang = Gang.AUTO) -> HostWorkload:
    """The case in virtual time. No two jobs come in the same order on all their devices."""
    jobs = tuple(
        Job(
            group=GroupSpec(name=f"j{number}", min=least, gang=gang),
            program=KINDS[kind],
            devices=on,
            late=tuple((3 * number + (-1 if number % 2 else 7) * rank) % 11 * MS for rank in range(len(on))),
        )
        for number, (kind, on, least) in enumerate(case.jobs)
    )
    return HostWorkload(jobs=jobs, devices=case.devices, policy=policy, duration=round(seconds * SECOND))


def rows(cases: Sequence[Case], seconds: float) -> Iterator[tuple[str, ...]]:
    """One for each case: speeds against alone, each way; of gangs also their worst second and longest stall, in ms."""
    for case in cases:
        gangs = workload(case, seconds)
        ways = [
            Host(workload(case, seconds, policy=NO_ARBITER)).run(),
            Host(workload(case, seconds, gang=Gang.OFF)).run(),
            Host(gangs).run(),
        ]
        alone = [run_job_alone(gangs, number) for number in range(len(case.jobs))]
        speeds = [
            " + ".join(f"{way.speed(number, one, start=START):.2f}" for number, one in enumerate(alone)) for way in ways
        ]
        worst, stall = [], 0
        for number, one in enumerate(alone):
            worst.append(f"{min(ways[-1].speeds(number, one, SECOND, start=START)):.2f}")
            now = 0
            for speed in ways[-1].speeds(number, one, 10 * MS, start=START):
                now = now + 10 if speed < 0.02 else 0
                stall = max(stall, now)
        yield (case.name, *speeds, " ".join(worst), f"{stall} ms")


def show(seconds: float, only: str) -> None:
    """Prints the cases whose names have ``only``."""
    print("simulated, virtual time; speeds are against the same job alone")
    print(" | ".join(HEAD))
    for row in rows([case for case in CASES if only in case.name], seconds):
        print(" | ".join(row), flush=True)
