"""Sensitivity and pressure from probes, as serve/plan/search/interference.py uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gemlet.serve.profiles.profile import RESOURCES, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.profiles.profile import ModelProfile, Probe, Profiles
    from gemlet.serve.profiles.surface import Surface


def derived(profiles: Profiles) -> Profiles:
    """The same profiles, with the vectors that follow from the probes; models without probes keep what they have.

    Probes are what was measured, and the rule that makes vectors of them may be another one in the next version.
    """
    models = {name: of_model(model, profiles.stressors) for name, model in profiles.models.items()}
    return replace(profiles, models=models)


def of_model(model: ModelProfile, stressors: Mapping[str, float]) -> ModelProfile:
    """One model, likewise."""
    if not model.probes:
        return model
    return replace(
        model,
        sensitivity=sensitivity(model.probes),
        pressure=pressure(model.probes, stressors, model.surface),
    )


def sensitivity(probes: Sequence[Probe]) -> Vector:
    """By how much the model is slower beside a stressor, the mean over shares and batches.

    The stressor of compute runs on SMs of its own and leaves the memory alone, so the least that it costs is what any
    neighbour does (``beside``).
    """
    means = {resource: _mean([p.slower - 1 for p in _of(probes, resource)]) for resource in RESOURCES}
    least = min((p.slower - 1 for p in _of(probes, "compute")), default=0.0)
    return Vector(**means, beside=round(max(0.0, least), 4))


def pressure(probes: Sequence[Probe], stressors: Mapping[str, float], surface: Surface) -> Vector:
    """The model's pressure on the whole device: 1 is what a stressor does to another of its kind.

    The planner takes it that the pressure of a model on a share is in proportion to the requests it serves there, so
    this is the slope of that line through what the probes with the largest batch found, and at most 1.
    """
    values = {}
    for resource in RESOURCES:
        worst = stressors.get(resource, 1.0) - 1
        found = _of(probes, resource)
        if worst <= 0.01 or not found:
            continue  # where not even a stressor disturbs, nothing can be said
        batch = max(p.batch for p in found)
        points = [
            ((p.pressed - 1) / worst, surface.latency(1.0, batch) / surface.latency(p.share, batch))
            for p in found
            if p.batch == batch
        ]
        slope = sum(taken * part for taken, part in points) / sum(part**2 for _, part in points)
        values[resource] = round(min(1.0, max(0.0, slope)), 4)
    return Vector(**values)


def _of(probes: Sequence[Probe], resource: str) -> list[Probe]:
    return [probe for probe in probes if probe.resource == resource]


def _mean(values: Sequence[float]) -> float:
    return round(max(0.0, sum(values) / len(values)), 4) if values else 0.0
