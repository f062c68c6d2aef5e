"""glet's model of interference: a line through what two neighbours use, fitted to pairs of models.

    alpha_i = max(1, max over j of l2_own * l2_i + l2 * l2_j + dram_own * dram_i + dram * dram_j + constant)

l2 and dram: a model's pressure on the whole device times its share, where glet has utilisations of a profiler. glet
takes it that two gpu-lets fill a device, so a model's own share is what its neighbours leave. Of several
neighbours, and of the models of one, the worst counts. `bench.interference` fits the coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gemlet.serve.plan.model import Linear
    from gemlet.serve.profiles.profile import Profiles


class Use(NamedTuple):
    """What is used of each resource at a share, 0..1."""

    l2: float
    dram: float


def use(profiles: Profiles, share: float, models: Iterable[str]) -> Use:
    """The most of each resource that one of the models uses at this share."""
    pressures = [profiles.models[model].pressure for model in models]
    return Use(
        share * max((p.l2 for p in pressures), default=0.0), share * max((p.dram for p in pressures), default=0.0)
    )


def slowdown(line: Linear, profiles: Profiles, model: str, neighbours: Sequence[tuple[float, Iterable[str]]]) -> float:
    """The slowdown (>= 1) of a model beside gpu-lets, each a share of the device and its models."""
    own = use(profiles, max(0.0, 1 - sum(share for share, _ in neighbours)), [model])
    others = [use(profiles, share, models) for share, models in neighbours]
    return max([1.0, *(at(line, own, other) for other in others)])


def at(line: Linear, own: Use, other: Use) -> float:
    """What the line says of a model beside one neighbour."""
    return line.l2_own * own.l2 + line.l2 * other.l2 + line.dram_own * own.dram + line.dram * other.dram + line.constant
