"""Programs that share the virtual device under the open engine, and how fast they are against alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from gemlet.model import GroupSpec, Priority
from gemlet.simulate.engine import NO_ARBITER, Engine, run_alone
from gemlet.simulate.workload import MICROSECOND, MILLISECOND, SECOND, DeviceModel, ProgramSpec, Workload

US, MS = MICROSECOND, MILLISECOND
SATURATING = ProgramSpec(kernel=200 * US)
# Eager generation: the host launches more slowly than the device works, and waits once a step.
LAUNCH_BOUND = ProgramSpec(kind="launch-bound", kernels=60, kernel=12 * US, gap=40 * US, host=300 * US)


class Shared:
    """One run of programs in groups of their own, 'g0', 'g1' ..."""

    def __init__(self, *members, seconds=6, device=None, **parameters):
        """Members: a program, or (its group's settings, program)."""
        pairs = [member if isinstance(member, tuple) else ({}, member) for member in members]
        specs = [spec | {"priority": Priority(spec.get("priority", "normal"))} for spec, _ in pairs]
        groups = tuple(
            (GroupSpec(name=f"g{i}", **spec), (program,))
            for i, (spec, (_, program)) in enumerate(zip(specs, pairs, strict=True))
        )
        self.workload = Workload(
            groups=groups, device=device or DeviceModel(), duration=round(seconds * SECOND), parameters=parameters
        )
        self.outcome = Engine(self.workload).run()
        self.count = len(pairs)

    def alone(self, number):
        return _alone(self.workload, number)

    def speed(self, number, start=SECOND, end=None):
        return self.outcome.speed(number, self.alone(number), start=start, end=end)

    def speeds(self, number, window=SECOND, start=SECOND):
        return self.outcome.speeds(number, self.alone(number), window, start=start)

    def total(self, start=SECOND):
        return sum(self.speed(number, start) for number in range(self.count))

    def sliced(self):
        """The same with no arbiter."""
        return _sliced(self.workload)

    def total_sliced(self, start=SECOND):
        outcome = self.sliced()
        return sum(outcome.speed(number, self.alone(number), start=start) for number in range(self.count))

    def sliced_speeds(self, number, window=SECOND, start=SECOND):
        return self.sliced().speeds(number, self.alone(number), window, start=start)

    def exclusive(self, number):
        """(time, whether it takes turns) whenever that changed."""
        states = [(at, bool(rows[f"g{number}"]["exclusive"])) for at, rows in self.outcome.states]
        return states[:1] + [later for earlier, later in pairwise(states) if earlier[1] != later[1]]

    def engagements(self, number):
        return sum(exclusive for _, exclusive in self.exclusive(number))

    def latencies(self, number, *, start=SECOND):
        program = self.outcome.clients[number].program
        return [took for at, took in zip(program.requested, program.latencies, strict=True) if at >= start]

    def latencies_alone(self, number, *, start=SECOND):
        program = self.alone(number).clients[number].program
        return [took for at, took in zip(program.requested, program.latencies, strict=True) if at >= start]


@lru_cache(maxsize=256)
def _lone(program, number, device, duration, seed):
    groups = tuple((GroupSpec(name=f"g{i}"), (program,)) for i in range(number + 1))
    return run_alone(Workload(groups=groups, device=device, duration=duration, seed=seed), number)


def _alone(workload, number):
    program = workload.groups[number][1][0]
    fixed = number if program.kind == "poisson" else 0
    outcome = _lone(program, fixed, workload.device, workload.duration, workload.seed)
    if fixed == number:
        return outcome
    return replace(outcome, clients=[outcome.clients[0]] * (number + 1))


@lru_cache(maxsize=64)
def _sliced_run(programs, device, duration, seed):
    groups = tuple((GroupSpec(name=f"g{i}"), (program,)) for i, program in enumerate(programs))
    return Engine(Workload(groups=groups, device=device, duration=duration, seed=seed, policy=NO_ARBITER)).run()


def _sliced(workload):
    programs = tuple(programs[0] for _, programs in workload.groups)
    return _sliced_run(programs, workload.device, workload.duration, workload.seed)


def served(outcome, number=0, start=SECOND):
    """How long each request took once those before it were done."""
    program, end, times = outcome.clients[number].program, 0, []
    for at, took in zip(program.requested, program.latencies, strict=True):
        began, end = max(at, end), at + took
        if at >= start:
            times.append(end - began)
    return times


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
