"""Jobs on several virtual devices, whose ranks wait for each other there, and how fast they are against alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gemlet.model import Gang, GroupSpec, Priority
from gemlet.simulate.engine import NO_ARBITER
from gemlet.simulate.host import Host, HostWorkload, Job, run_job_alone
from gemlet.simulate.workload import MICROSECOND, MILLISECOND, SECOND, DeviceModel, ProgramSpec

US, MS = MICROSECOND, MILLISECOND
# A training that reduces gradients once a step, one that gathers its layers, and a generator that reduces each layer.
DDP = ProgramSpec(kind="ranks", kernels=20, kernel=100 * US, gap=5 * US, collective=500 * US, host=100 * US)
FSDP = ProgramSpec(kind="ranks", kernels=5, kernel=100 * US, gap=5 * US, layers=8, collective=200 * US, host=100 * US)
TENSOR = ProgramSpec(kind="ranks", kernels=4, kernel=50 * US, gap=5 * US, layers=16, collective=30 * US, host=60 * US)
# A training whose hosts take their time, each its own: the ranks wait for each other more than for their devices.
EAGER = ProgramSpec(
    kind="ranks", kernels=40, kernel=50 * US, gap=200 * US, collective=500 * US, host=5 * MS, uneven=4.0
)
SATURATING = ProgramSpec(kernel=200 * US)
DEVICE = DeviceModel()
START = SECOND // 2  # turns have begun
STEP = 10 * MS
NOTHING = 0.02  # a job that was slower than this in a step stood still
TWO_CYCLES = 200 * MS


class Jobs:
    """One run of jobs in groups of their own, 'j0', 'j1' ...; each a program and its devices, and its group's terms."""

    def __init__(self, *jobs, devices=2, seconds=2.5, policy="fair", gang="auto", device=DEVICE, **parameters):
        made = []
        for number, (program, on, *terms) in enumerate(jobs):
            spec = dict(*terms)
            spec |= {"priority": Priority(spec.get("priority", "normal")), "gang": Gang(spec.get("gang", gang))}
            group = GroupSpec(name=f"j{number}", **spec)
            # No two come in the same order on all their devices.
            late = tuple((3 * number + (-1 if number % 2 else 7) * rank) % 11 * MS for rank in range(len(on)))
            made.append(Job(group=group, program=program, devices=tuple(on), late=late))
        self.workload = HostWorkload(
            jobs=tuple(made),
            devices=devices,
            device=device,
            duration=round(seconds * SECOND),
            policy=policy,
            parameters=parameters,
        )
        self.host = Host(self.workload)
        self.count = len(made)

    def run(self):
        self.outcome = self.host.run()
        return self

    def alone(self, number):
        load = self.workload
        return _alone(replace(load.jobs[number], late=()), load.devices, load.device, load.duration)

    def speed(self, number, start=START, end=None):
        return self.work(number, start, end) / self.alone(number).work(0, start, end)

    def work(self, number, start, end=None):
        return self.outcome.work(number, start, end)

    def speeds(self, number, window=SECOND, start=START):
        ends = range(start + window, self.workload.duration + 1, window)
        return [self.speed(number, end - window, end) for end in ends]

    def total(self, start=START):
        return sum(self.speed(number, start) for number in range(self.count))

    def longest_stall(self, number, start=START):
        longest = now = 0
        for speed in self.speeds(number, STEP, start):
            now = now + STEP if speed < NOTHING else 0
            longest = max(longest, now)
        return longest


@lru_cache(maxsize=256)
def _alone(job, devices, device, duration):
    return run_job_alone(HostWorkload(jobs=(job,), devices=devices, device=device, duration=duration), 0)


def sliced(*jobs, **options):
    """The same with nothing but the hardware's time slices."""
    return Jobs(*jobs, policy=NO_ARBITER, **options).run()
