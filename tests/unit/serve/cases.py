"""Small worlds for the tests of serving: profiles whose latencies can be worked out in the head."""

from __future__ import annotations

from gemlet.serve.plan.model import Demand
from gemlet.serve.profiles.profile import Device, ModelProfile, Profiles, Vector

TENTHS = tuple(n / 10 for n in range(1, 11))
BATCHES = (1, 2, 4, 8, 16, 32)


def scaling(full_ms: float, *, knee: float = 1.0, **more: object) -> ModelProfile:
    """L = full_ms * batch * knee / min(share, knee): throughput rises with the share up to the knee, not by batching.

    At shares from the knee upwards one request takes ``full_ms``.
    """
    latency = tuple((s, b, full_ms * b * knee / min(s, knee)) for s in TENTHS for b in BATCHES)
    return ModelProfile(latency=latency, **more)  # type: ignore[arg-type]


def batching(fixed_ms: float, each_ms: float) -> ModelProfile:
    """L = fixed + each * batch on the whole device, inversely with the share."""
    return ModelProfile(latency=tuple((s, b, (fixed_ms + each_ms * b) / s) for s in TENTHS for b in BATCHES))


def fixed_part(fixed_ms: float, each_ms: float) -> ModelProfile:
    """L = fixed + each * batch / share: a part that no SM makes shorter, as small kernels one after the other have."""
    return ModelProfile(latency=tuple((s, b, fixed_ms + each_ms * b / s) for s in TENTHS for b in BATCHES))


def world(**models: ModelProfile) -> Profiles:
    """An imaginary device that splits into tenths, with these models."""
    device = Device(name="imaginary", sms=100, sm_step=10, memory_mib=10_000, context_mib=100)
    return Profiles(origin="modelled", device=device, models=models)


def demand(model: str, rate: float, slo_ms: float) -> Demand:
    return Demand(model=model, rate=rate, slo_ms=slo_ms)


DRAM_BOUND = {"sensitivity": Vector(dram=1.0), "pressure": Vector(dram=1.0)}
COMPUTE_BOUND = {"sensitivity": Vector(compute=1.0), "pressure": Vector(compute=1.0)}
