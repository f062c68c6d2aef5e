"""Takes the steps of each model within a budget of time, and hands on the profile after each, so that an early end
leaves a file that can be used and continued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from gemlet.errors import GemletError
from gemlet.serve.profiles.profile import RESOURCES, Probe
from gemlet.serve.profiling import document
from gemlet.serve.profiling.repetition import Samples
from gemlet.serve.profiling.steps import Latency, Step, share, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.serve.profiles.profile import Device, Profiles


class Bench(Protocol):
    """One model, loaded. The methods block."""

    weights_mib: float
    activation_mib: float  # for each request; known after the first latency

    def prepare(self, groups: int, batches: Sequence[int]) -> None: ...

    def once(self, groups: int, batch: int) -> float:
        """Milliseconds of one batch, host to host."""
        ...

    def probe(self, groups: int, batch: int, resource: str) -> tuple[float, float]:
        """(model's time beside the stressor over its time alone, the same of the stressor)."""
        ...

    def close(self) -> None: ...


class Rig(Protocol):
    """The device that is measured."""

    groups: int
    device: Device

    def stressor(self, resource: str) -> float:
        """How much slower it gets beside another of its kind, each on half of the device."""
        ...

    def load(self, subject: Subject) -> Bench:
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
    """Measures; returns the profile and what is missing in it. ``budget`` in seconds of ``clock``."""
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
        profiles = replace(profiles, stressors={r: round(rig.stressor(r), 4) for r in RESOURCES})
    pending = [subject for subject in subjects if work[subject]]
    for number, subject in enumerate(pending):
        allowed = clock() + (end - clock()) / (len(pending) - number)  # what one leaves over the next ones have
        reporter.step(subject.name, "loading")
        try:
            bench = rig.load(subject)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a model's own code raises anything
            left.append(Left(subject.name, _why(error)))
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
                    profiles = _take(bench, step, profiles, subject, rig.groups)
                except (Exception, SystemExit) as error:  # noqa: BLE001  as above
                    left.append(Left(subject.name, _why(error)))
                    reporter.done(len(work[subject]) - position)
                    break
                write(profiles)
                reporter.done(1)
        finally:
            try:
                bench.close()
            except Exception as error:  # noqa: BLE001  as above: a device that a model broke
                left.append(Left(subject.name, _why(error)))
    return profiles, left


def _why(error: BaseException) -> str:
    """In a line. What is no GemletError is named by its kind: its text may be a number only, or none."""
    if isinstance(error, GemletError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _take(bench: Bench, step: Step, profiles: Profiles, subject: Subject, groups: int) -> Profiles:
    model = profiles.models.get(subject.name)
    at = share(step.groups, groups)
    if isinstance(step, Latency):
        bench.prepare(step.groups, step.batches)
        found: dict[int, Samples] = {}
        for batch in step.batches:
            samples = found[batch] = Samples()
            while not samples.enough:
                samples.add(bench.once(step.groups, batch))
        model = document.with_latencies(
            model, at, found, weights_mib=bench.weights_mib, activation_mib=bench.activation_mib
        )
    else:
        assert model is not None, "latencies come first"
        bench.prepare(step.groups, (step.batch,))
        probes = []
        for resource in step.resources:
            slower, pressed = bench.probe(step.groups, step.batch, resource)
            probes.append(Probe(resource, at, step.batch, round(slower, 4), round(pressed, 4)))
        model = document.with_probes(model, probes, profiles.stressors)
    for name in (subject.name, *subject.same):
        profiles = document.with_model(profiles, name, model)
    return profiles


def _message(step: Step, groups: int) -> str:
    part = f"{step.groups}/{groups} of the SMs"
    if isinstance(step, Latency):
        return f"latency on {part}"
    return f"beside stressors, {part}, batch {step.batch}"
