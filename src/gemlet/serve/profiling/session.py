"""Takes the steps of each model within a budget of time, and hands on the profile after each, so that an early end
leaves a file that can be used and continued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from gemlet.errors import GemletError
from gemlet.serve.profiles.profile import RESOURCES, check
from gemlet.serve.profiling import document
from gemlet.serve.profiling.steps import Latency, share, steps
from gemlet.serve.profiling.taking import why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.serve.profiles.profile import Device, Profiles
    from gemlet.serve.profiling.steps import Step
    from gemlet.serve.profiling.taking import Taken


class Bench(Protocol):
    """One model, loaded. The methods block, and raise GemletError or whatever the model does."""

    def take(self, step: Step, until: float) -> Taken:
        """Where the clock reaches ``until`` first, it raises GemletError."""
        ...

    def close(self) -> None: ...


class Rig(Protocol):
    """The device that is measured. ``until`` as above."""

    groups: int
    device: Device

    def stressor(self, resource: str, until: float) -> float:
        """How much slower it gets beside another of its kind, each on half of the device."""
        ...

    def load(self, subject: Subject, until: float) -> Bench:
        """Raises GemletError, and whatever the model's files do."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that shall be measured. same: of these names its profile is, too."""

    name: str
    max_batch: int
    directory: str = ""
    same: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """What was not measured, and why."""

    model: str
    why: str


class Reporter(Protocol):
    """Told how far it is."""

    def begin(self, total: int) -> None: ...

    def step(self, model: str, what: str) -> None: ...

    def done(self, count: int) -> None: ...


def run(
    rig: Rig,
    subjects: Sequence[Subject],
    old: Profiles | None,
    *,
    write: Callable[[Profiles], None],
    clock: Callable[[], float],
    budget: float,
    reporter: Reporter,
    quick: bool = False,
) -> tuple[Profiles, list[Left]]:
    """Measures; returns the profile and what is missing in it. ``budget`` in seconds of ``clock``.

    Each model has an equal part of what is left of the budget: after that no step begins. One that has begun, or
    loading, may take as much as half of what is left for the others, so that a model that hangs leaves them theirs.
    """
    profiles = document.continued(old, rig.device)
    work = {
        subject: document.outstanding(
            steps(rig.groups, subject.max_batch, quick=quick), profiles.models.get(subject.name), rig.groups
        )
        for subject in subjects
    }
    reporter.begin(sum(len(each) for each in work.values()))
    end = clock() + budget
    left: list[Left] = []
    if any(work.values()) and not profiles.stressors:
        reporter.step("stressors", "beside each other")
        profiles = replace(profiles, stressors={r: round(rig.stressor(r, end), 4) for r in RESOURCES})
    pending = [subject for subject in subjects if work[subject]]
    for number, subject in enumerate(pending):
        now = clock()
        if now >= end:
            left.append(Left(subject.name, "nothing was measured: the budget is used up"))
            reporter.done(len(work[subject]))
            continue
        allowed = now + (end - now) / (len(pending) - number)  # what one leaves over the next ones have
        until = allowed + (end - allowed) / 2
        reporter.step(subject.name, "loading")
        try:
            bench = rig.load(subject, until)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a model's own code raises anything
            left.append(Left(subject.name, why(error)))
            reporter.done(len(work[subject]))
            continue
        try:
            for position, step in enumerate(work[subject]):
                if position and clock() > allowed:
                    missing = len(work[subject]) - position
                    left.append(Left(subject.name, f"{missing} of {len(work[subject])} steps: the budget is used up"))
                    reporter.done(missing)
                    break
                reporter.step(subject.name, _message(step, rig.groups))
                try:
                    profiles = _with(profiles, subject, step, bench.take(step, until), rig.groups)
                except (Exception, SystemExit) as error:  # noqa: BLE001  as above
                    left.append(Left(subject.name, why(error)))
                    reporter.done(len(work[subject]) - position)
                    break
                write(profiles)
                reporter.done(1)
        finally:
            try:
                bench.close()
            except Exception as error:  # noqa: BLE001  as above: a device that a model broke
                left.append(Left(subject.name, why(error)))
    return profiles, left


def _with(profiles: Profiles, subject: Subject, step: Step, taken: Taken, groups: int) -> Profiles:
    """Raises GemletError where what was taken would make a file that cannot be read again, with all others in it."""
    model = profiles.models.get(subject.name)
    if isinstance(step, Latency):
        model = document.with_latencies(model, share(step.groups, groups), taken)
    else:
        assert model is not None, "latencies come first"
        model = document.with_probes(model, taken.probes, profiles.stressors)
    for name in (subject.name, *subject.same):
        profiles = document.with_model(profiles, name, model)
    if problem := check(profiles):
        raise GemletError(f"{_message(step, groups)} came to numbers that make no sense: {problem}")
    return profiles


def _message(step: Step, groups: int) -> str:
    part = f"{step.groups}/{groups} of the SMs"
    if isinstance(step, Latency):
        return f"latency on {part}"
    return f"beside stressors, {part}, batch {step.batch}"
