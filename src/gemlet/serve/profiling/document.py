"""The profile file as it grows, valid at every step, and the parts of an older file that still hold."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gemlet.serve.profiles import vectors
from gemlet.serve.profiles.profile import ModelProfile, Profiles
from gemlet.serve.profiling.steps import Latency, Probes, share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.profiles.profile import Device, Probe
    from gemlet.serve.profiling.steps import Step
    from gemlet.serve.profiling.taking import Taken

NOTE = (
    "measured by gemlet profile: from arrays on the host to arrays on the host, by CUDA graphs on SMs of their own; "
    "a share is one of groups of SMs"
)


def continued(old: Profiles | None, device: Device) -> Profiles:
    """What a new run begins with: the old file if it is of this very device, driver and software, else nothing."""
    if old is not None and old.measured and old.device == device:
        return old
    return Profiles(origin="measured", device=device, models={}, note=NOTE)


def outstanding(steps: Sequence[Step], model: ModelProfile | None, groups: int) -> list[Step]:
    """The steps whose results are not in ``model`` yet."""
    if model is None:
        return list(steps)
    anchors = {(s, b) for s, b, _ in model.latency}
    probes = {(p.resource, p.share, p.batch) for p in model.probes}
    left: list[Step] = []
    for step in steps:
        at = share(step.groups, groups)
        if isinstance(step, Latency):
            if batches := tuple(b for b in step.batches if (at, b) not in anchors):
                left.append(Latency(step.groups, batches))
        elif resources := tuple(r for r in step.resources if (r, at, step.batch) not in probes):
            left.append(Probes(step.groups, step.batch, resources))
    return left


def with_latencies(model: ModelProfile | None, at: float, taken: Taken) -> ModelProfile:
    """``model`` with these anchors at one share."""
    new = tuple((at, found.batch, round(found.median, 5)) for found in sorted(taken.latencies, key=lambda f: f.batch))
    variation = round(median(found.variation for found in taken.latencies), 4)
    weights_mib, activation_mib = round(taken.weights_mib, 2), round(taken.activation_mib, 3)
    if model is None:
        return ModelProfile(latency=new, variation=variation, weights_mib=weights_mib, activation_mib=activation_mib)
    again = {(s, b) for s, b, _ in new}
    kept = tuple(anchor for anchor in model.latency if anchor[:2] not in again)
    anchors = tuple(sorted((*kept, *new)))
    return replace(model, latency=anchors, variation=max(model.variation, variation), weights_mib=weights_mib)


def with_probes(model: ModelProfile, probes: Sequence[Probe], stressors: Mapping[str, float]) -> ModelProfile:
    """``model`` with further probes, and the vectors that follow from all of them."""
    return vectors.of_model(replace(model, probes=(*model.probes, *probes)), stressors)


def with_model(profiles: Profiles, name: str, model: ModelProfile) -> Profiles:
    """``profiles`` with this one; its vectors follow from its latencies, too, of which there may be more by now."""
    return replace(profiles, models={**profiles.models, name: vectors.of_model(model, profiles.stressors)})
