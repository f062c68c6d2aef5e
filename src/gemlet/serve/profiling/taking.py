"""One step of one model: what the process that runs the model does between two messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import msgspec

from gemlet.errors import GemletError
from gemlet.serve.profiles.profile import Device, Probe
from gemlet.serve.profiling.repetition import Samples
from gemlet.serve.profiling.steps import Latency, Step, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.models.specification import ModelSpec


class Bench(Protocol):
    """One model, loaded. The methods block, and raise whatever the model does."""

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


class Machine(Protocol):
    """The device that is measured."""

    groups: int
    device: Device

    def stressor(self, resource: str) -> float:
        """How much slower it gets beside another of its kind, each on half of the device."""
        ...

    def bench(self, spec: ModelSpec) -> Bench: ...


class Found(msgspec.Struct, frozen=True):
    """Of one batch: milliseconds, and their standard deviation over their mean."""

    batch: int
    median: float
    variation: float


class Taken(msgspec.Struct, frozen=True):
    """What a step came to."""

    latencies: tuple[Found, ...] = ()
    probes: tuple[Probe, ...] = ()
    weights_mib: float = 0.0
    activation_mib: float = 0.0


def take(bench: Bench, step: Step, groups: int) -> Taken:
    """Measures. ``groups``: of the whole device. Raises whatever the model does."""
    if isinstance(step, Latency):
        bench.prepare(step.groups, step.batches)
        found = []
        for batch in step.batches:
            samples = Samples()
            while not samples.enough:
                samples.add(bench.once(step.groups, batch))
            found.append(Found(batch, samples.median, samples.variation))
        return Taken(tuple(found), weights_mib=bench.weights_mib, activation_mib=bench.activation_mib)
    bench.prepare(step.groups, (step.batch,))
    at = share(step.groups, groups)
    probes = []
    for resource in step.resources:
        slower, pressed = bench.probe(step.groups, step.batch, resource)
        probes.append(Probe(resource, at, step.batch, round(slower, 4), round(pressed, 4)))
    return Taken(probes=tuple(probes))


def why(error: BaseException) -> str:
    """In a line. What is no GemletError is named by its kind: its text may be a number only, or none."""
    if isinstance(error, GemletError):
        return str(error)
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001  its text is the model's code, too
        lines = []
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def sound(step: Step, taken: Taken, groups: int) -> bool:
    """Whether that can be what the step measures: a file with anything else could not be read again."""
    numbers = [taken.weights_mib, taken.activation_mib]
    numbers += [each for found in taken.latencies for each in (found.median, found.variation)]
    numbers += [each for probe in taken.probes for each in (probe.slower, probe.pressed)]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return False
    if isinstance(step, Latency):
        right = tuple(found.batch for found in taken.latencies) == step.batches and not taken.probes
        return right and all(found.median > 0 for found in taken.latencies)
    wanted = [(resource, share(step.groups, groups), step.batch) for resource in step.resources]
    return [(each.resource, each.share, each.batch) for each in taken.probes] == wanted and not taken.latencies
