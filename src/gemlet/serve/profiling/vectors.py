"""Sensitivity and pressure from probes, as planner/interference.py uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.profiles import RESOURCES, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.profiles import Probe


def sensitivity(probes: Sequence[Probe]) -> Vector:
    """By how much the model is slower beside a stressor, the mean over shares and batches."""
    return Vector(**{resource: _mean([p.slower - 1 for p in _of(probes, resource)]) for resource in RESOURCES})


def pressure(probes: Sequence[Probe], stressors: Mapping[str, float]) -> Vector:
    """How much the model presses on the whole device: 1 is what a stressor does to another of its kind.

    The planner takes share x pressure for what a model on a share does, so this is the slope of that line through
    what the probes found, and at most 1.
    """
    values = {}
    for resource in RESOURCES:
        worst = stressors.get(resource, 1.0) - 1
        found = _of(probes, resource)
        if worst <= 0.01 or not found:
            continue  # where not even a stressor disturbs, nothing can be said
        slope = sum((p.pressed - 1) / worst * p.share for p in found) / sum(p.share**2 for p in found)
        values[resource] = round(min(1.0, max(0.0, slope)), 4)
    return Vector(**values)


def _of(probes: Sequence[Probe], resource: str) -> list[Probe]:
    return [probe for probe in probes if probe.resource == resource]


def _mean(values: Sequence[float]) -> float:
    return round(max(0.0, sum(values) / len(values)), 4) if values else 0.0
