"""How much the neighbours on a device slow a model down.

    alpha_i = 1 + sum over r in {dram, l2} of sensitivity_i[r] * min(1, sum over j of share_j * pressure_j[r])
                + sensitivity_i[compute] * over * max over j of pressure_j[compute]

j are the neighbours; ``over`` is how far the shares on the device pass the whole: gpu-lets that do not overlap do not
compete for SMs. A gpu-let of several models presses with the largest pressure among them. The vectors are continuous: a
model is not "compute" or "memory" but so much of each, and the products make opposite models good neighbours.

A planner that knows no types has to expect that each neighbour is the worst of all models there are: `press` of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gemlet.serve.profiles import Profiles, Vector


class Press(NamedTuple):
    """A neighbour: its share and its pressure on each resource (0..1, at the whole device)."""

    share: float
    dram: float
    l2: float
    compute: float


def press(profiles: Profiles, share: float, models: Iterable[str]) -> Press:
    """What a gpu-let with these models does to its neighbours."""
    vectors = [profiles.models[model].pressure for model in models]
    return Press(
        share,
        max((v.dram for v in vectors), default=0.0),
        max((v.l2 for v in vectors), default=0.0),
        max((v.compute for v in vectors), default=0.0),
    )


def slow_down(sensitivity: Vector, neighbours: Sequence[Press], over: float = 0.0) -> float:
    """alpha >= 1 of a model beside these neighbours."""
    dram = min(1.0, sum(n.share * n.dram for n in neighbours))
    l2 = min(1.0, sum(n.share * n.l2 for n in neighbours))
    alpha = 1 + sensitivity.dram * dram + sensitivity.l2 * l2
    if over > 0:
        alpha += sensitivity.compute * over * max((n.compute for n in neighbours), default=0.0)
    return alpha


def clash(profiles: Profiles, one: str, other: str) -> float:
    """0 for models that want different things, up to 2 for two that want the same: the tie-break of placement."""
    a, b = profiles.models[one].pressure, profiles.models[other].pressure
    return a.dram * b.dram + a.compute * b.compute + max(0.0, a.dram + b.dram - 1)


def opposite(profiles: Profiles, one: str, other: str) -> bool:
    """One of the two is dominated by memory, the other by compute."""
    a, b = profiles.models[one].pressure, profiles.models[other].pressure
    return (a.dram - a.compute) * (b.dram - b.compute) < 0
