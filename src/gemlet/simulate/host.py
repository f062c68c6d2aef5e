"""Programs on several modelled devices of one host: an arbiter each, and what decides for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from gemlet._native import Gangs
from gemlet.config.quantities import SECOND
from gemlet.simulate.collective import Ranks
from gemlet.simulate.engine import NO_ARBITER, Engine, Outcome, play
from gemlet.simulate.timeline import Timeline
from gemlet.simulate.workload import DeviceModel, ProgramSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.model import GroupSpec
    from gemlet.simulate.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A group with one program on each of ``devices``; those of kind ``ranks`` wait for each other.

    late: how much later than the program arrives each of them comes; nothing is said of those beyond its end.
    """

    group: GroupSpec
    program: ProgramSpec
    devices: tuple[int, ...]
    late: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWorkload:
    """Jobs on the devices of one host."""

    jobs: tuple[Job, ...]
    devices: int = 2
    device: DeviceModel = field(default_factory=DeviceModel)
    parameters: dict[str, float] = field(default_factory=dict)
    policy: str = "fair"
    duration: int = 5 * SECOND
    seed: int = 1


@dataclass(slots=True)
class HostOutcome:
    """What happened on each device. ``ranks``: of each job, (device, number of the client there)."""

    outcomes: list[Outcome]
    ranks: list[list[tuple[int, int]]]
    duration: int

    def work(self, job: int, start: int = 0, end: int | None = None) -> float:
        """Device time of its own work in [start, end), over all its devices; multiples of BIN."""
        return sum(self.outcomes[device].work(number, start, end) for device, number in self.ranks[job])

    def speed(self, job: int, alone: HostOutcome, *, start: int = 0, end: int | None = None) -> float:
        """Speed against alone over [start, end)."""
        return self.work(job, start, end) / max(alone.work(job, start, end), 1.0)

    def speeds(self, job: int, alone: HostOutcome, window: int, *, start: int = 0) -> list[float]:
        """The same in each window from ``start`` on."""
        ends = range(start + window, self.duration + 1, window)
        return [self.speed(job, alone, start=end - window, end=end) for end in ends]

    def client(self, job: int, rank: int) -> Client:
        """One of a job's clients."""
        device, number = self.ranks[job][rank]
        return self.outcomes[device].clients[number]


class Host:
    """Runs one workload; ``Host(workload).run()``."""

    def __init__(self, workload: HostWorkload, *, only: int | None = None) -> None:
        """``only``: of its jobs, just this one takes part."""
        self._workload = workload
        self._timeline = timeline = Timeline()
        one = Workload(
            groups=(),
            device=workload.device,
            parameters=workload.parameters,
            policy=workload.policy,
            duration=workload.duration,
            seed=workload.seed,
        )
        self.engines = [Engine(one, timeline=timeline) for _ in range(workload.devices)]
        self._ranks: list[list[tuple[int, int]]] = []
        self.gangs: Gangs | None = None
        if workload.policy != NO_ARBITER:
            self.gangs = Gangs(**workload.parameters)
            for engine in self.engines:
                self.gangs.add(engine.arbiter)
        for number, job in enumerate(workload.jobs):
            ranks = Ranks(len(job.devices))
            if self.gangs is not None and job.program.kind == "ranks" and len(job.devices) > 1:
                self.gangs.tie(job.group.name)
            clients = []
            for device, late in zip_longest(job.devices, job.late, fillvalue=0):
                engine = self.engines[device]
                engine.set_group(job.group)
                takes_part = only is None or only == number
                program = replace(job.program, arrive=job.program.arrive + late)
                client = engine.add(job.group.name, program, takes_part=takes_part, ranks=ranks)
                clients.append((device, client.number))
            self._ranks.append(clients)

    def client(self, job: int, rank: int) -> Client:
        """One of a job's clients."""
        device, number = self._ranks[job][rank]
        return self.engines[device].client(number)

    def kill(self, job: int, rank: int) -> None:
        """Ends one of a job's clients, whatever it does."""
        self.engines[self._ranks[job][rank][0]].exit(self.client(job, rank))

    def at(self, time: int, do: Callable[[], None]) -> None:
        """``do`` at ``time`` of the virtual clock."""
        self._timeline.at(time, do)

    def run(self) -> HostOutcome:
        """Runs to the end of the workload's duration."""
        play(self.engines, self._timeline, self.gangs)
        return HostOutcome([engine.outcome() for engine in self.engines], self._ranks, self._workload.duration)


def run_job_alone(workload: HostWorkload, number: int) -> HostOutcome:
    """One job of the workload with its devices to itself."""
    return Host(replace(workload, policy=NO_ARBITER), only=number).run()
