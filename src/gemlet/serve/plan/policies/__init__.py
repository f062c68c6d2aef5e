"""The policies by name. To add one: a file with `pack`, a line here, a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gemlet.config import suggest
from gemlet.errors import InvalidValue
from gemlet.serve.plan.model import Demand, PlanOptions
from gemlet.serve.plan.policies import exclusive, exhaustive, gpulet, nway, selftuning, static, timeshare
from gemlet.serve.plan.search.draft import Draft

# Fills draft.gpus for these demands (rates with headroom, above 0); at most so many devices. Returns why not, or [].
Pack = Callable[[Draft, Sequence[Demand], int], list[str]]


@dataclass(frozen=True, slots=True)
class Policy:
    """``forces``: options it overrides. keeps: may return the previous plan. fixed: starts from its gpu-lets.

    types: rests on gemlet's own model of interference.
    """

    pack: Pack
    line: str
    forces: dict[str, Any] = field(default_factory=dict)
    keeps: bool = True
    fixed: bool = False
    types: bool = False

    def adapt(self, options: PlanOptions) -> PlanOptions:
        return msgspec.structs.replace(options, **self.forces)


_GPULET = {"grid": 10}
POLICIES: dict[str, Policy] = {
    "exclusive": Policy(exclusive.pack, "one model a device"),
    "timeshare": Policy(timeshare.pack, "whole devices, models by turns (Nexus)", {"max_models": 64}),
    "static": Policy(
        static.pack,
        "fixed gpu-lets: those of the previous plan, else two halves a device",
        {"grid": 100},
        keeps=False,
        fixed=True,
    ),
    "gpulet": Policy(gpulet.pack, "elastic partitioning, two gpu-lets a device (ATC'22)", _GPULET),
    "gpulet-noint": Policy(gpulet.pack, "the same, blind to interference", {**_GPULET, "interference": False}),
    "oracle": Policy(gpulet.pack, "gpulet for the exact rates, without headroom", {**_GPULET, "quantile": 0.5}),
    "selftuning": Policy(selftuning.pack, "shares and batches by feedback (GSLICE)", {"interference": False}),
    "ideal": Policy(exhaustive.pack_ideal, "every two-way partition of every device; small cases", _GPULET),
    "exhaustive": Policy(exhaustive.pack_exhaustive, "every N-way partition and placement; small cases"),
    "nway": Policy(nway.pack, "N-way gpu-lets, local search; blind to types", {"blind": True}, types=True),
    "nway+type": Policy(nway.pack, "nway with the workload types' interference", types=True),
}


def find(name: str) -> Policy:
    """Raises InvalidValue with the likely name."""
    if name not in POLICIES:
        raise InvalidValue(f"unknown policy {name!r}", hint=suggest.hint(name, POLICIES))
    return POLICIES[name]
