"""How much the neighbours on a device slow a model down.

    alpha_i = 1 + max(beside_i, sensitivity_i[r] * min(1, sum over j of press_j[r]) for r in {dram, l2})
                + sensitivity_i[compute] * over * max over j of pressure_j[compute]
    press_j[r] = pressure_j[r] * throughput_j(share) / throughput_j(whole device)

j are the neighbours; ``over`` is how far the shares on the device pass the whole: gpu-lets that do not overlap do not
compete for SMs. A gpu-let of several models has the largest pressure among them; one of a pool (pool.py) with
the mean over its time, since its neighbours meet each model for a short while only.

Why so: what a neighbour takes of the memory goes with the work it gets done, which is less than proportional to its
SMs. DRAM and L2 are two places of one path, which is as fast as the slower one, and a stressor of one already loads the
other; so the larger term counts, not the sum. ``beside`` is what any neighbour costs, however little memory it touches:
clocks, and kernels that start one after the other.

The vectors are continuous: a model is not "compute" or "memory" but so much of each, and the products make opposite
models good neighbours. A planner that knows no types has to expect that each neighbour is the worst of all models
there are: `contention` of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gemlet.serve.profiles.profile import ModelProfile, Profiles, Vector


class Contention(NamedTuple):
    """A neighbour: what it takes of each resource (0..1). DRAM and L2 at its share; compute as on the whole device."""

    dram: float
    l2: float
    compute: float


def contention(profiles: Profiles, share: float, models: Iterable[str]) -> Contention:
    """What a gpu-let with these models does to its neighbours."""
    dram = l2 = compute = 0.0
    for name in models:
        model = profiles.models[name]
        part = _throughput_part(model, share)
        dram = max(dram, part * model.pressure.dram)
        l2 = max(l2, part * model.pressure.l2)
        compute = max(compute, model.pressure.compute)
    return Contention(dram, l2, compute)


def mean_contention(profiles: Profiles, share: float, parts: Mapping[str, float]) -> Contention:
    """The same in the mean over its time, of which each model has a part: for many turns, short against an SLO."""
    dram = l2 = compute = 0.0
    for name, part in parts.items():
        model = profiles.models[name]
        done = part * _throughput_part(model, share)
        dram += done * model.pressure.dram
        l2 += done * model.pressure.l2
        compute += part * model.pressure.compute
    return Contention(dram, l2, compute)


def slowdown_beside(sensitivity: Vector, neighbours: Sequence[Contention], over: float = 0.0) -> float:
    """The slowdown (>= 1) of a model beside these neighbours."""
    if not neighbours:
        return 1.0
    dram = min(1.0, sum(n.dram for n in neighbours))
    l2 = min(1.0, sum(n.l2 for n in neighbours))
    slowdown = 1 + max(sensitivity.beside, sensitivity.dram * dram, sensitivity.l2 * l2)
    if over > 0:
        slowdown += sensitivity.compute * over * max(n.compute for n in neighbours)
    return slowdown


def clash(profiles: Profiles, one: str, other: str) -> float:
    """0 for models that need different resources, up to 2 for two that need the same: breaks ties of placement."""
    a, b = profiles.models[one].pressure, profiles.models[other].pressure
    return a.dram * b.dram + a.compute * b.compute + max(0.0, a.dram + b.dram - 1)


def _throughput_part(model: ModelProfile, share: float) -> float:
    """Requests/s at this share over those on the whole device, with the largest batch."""
    surface = model.surface
    return surface.latency(1.0, surface.max_batch) / surface.latency(share, surface.max_batch) if share > 0 else 0.0
