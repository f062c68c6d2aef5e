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
    """How much the model slows a stressor, in parts of what another stressor of its kind does; 0..1."""
    values = {}
    for resource in RESOURCES:
        worst = stressors.get(resource, 1.0) - 1
        caused = _mean([p.pressed - 1 for p in _of(probes, resource)])
        values[resource] = round(min(1.0, caused / worst), 4) if worst > 0.01 else 0.0
    return Vector(**values)


def _of(probes: Sequence[Probe], resource: str) -> list[Probe]:
    return [probe for probe in probes if probe.resource == resource]


def _mean(values: Sequence[float]) -> float:
    return round(max(0.0, sum(values) / len(values)), 4) if values else 0.0
