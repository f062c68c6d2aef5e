"""Demands before they are placed: sense, headroom, and those that no device can meet."""

from __future__ import annotations

from math import ceil, isfinite, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec

from gemlet.config import suggest
from gemlet.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gemlet.serve.plan.model import Demand, Inventory, PlanOptions
    from gemlet.serve.plan.search.draft import Draft

LEAST_RATE = 0.001  # requests/s: a model with one request an hour has a place, too


def check(known: Collection[str], demands: Sequence[Demand], inventory: Inventory, options: PlanOptions) -> None:
    """Raises InvalidValue for the first thing that makes no sense. ``known``: the models that have a profile."""
    if not isfinite(options.hop_ms) or options.hop_ms < 0:
        raise InvalidValue(
            f"hop_ms is {options.hop_ms:g}: expected 0 or more",
            hint="write what a batch takes beside its profile, such as 0.4",
        )
    seen = set()
    for demand in demands:
        if demand.model not in known:
            raise InvalidValue(f"no profile of model {demand.model!r}", hint=suggest.hint(demand.model, known))
        if demand.model in seen:
            raise InvalidValue(f"model {demand.model!r} is demanded twice", hint="add the rates into one demand")
        seen.add(demand.model)
        if not isfinite(demand.rate) or demand.rate < 0:
            raise InvalidValue(
                f"model {demand.model!r}: the rate is {demand.rate:g} requests/s: expected 0 or more",
                hint="write how many requests come in a second",
            )
        if not isfinite(demand.slo_ms) or demand.slo_ms <= 0:
            raise InvalidValue(
                f"model {demand.model!r}: the SLO is {demand.slo_ms:g} ms: expected more than 0",
                hint="write how late a reply may be, in milliseconds",
            )
        if not isfinite(demand.variation) or demand.variation < 0:
            raise InvalidValue(
                f"model {demand.model!r}: the variation is {demand.variation:g}: expected 0 or more",
                hint="write 1 for Poisson arrivals",
            )
    if inventory.gpus < 1:
        raise InvalidValue(
            f"{inventory.gpus} GPUs are not enough to plan on: expected 1 or more", hint="name at least one"
        )
    if not 0 < options.quantile < 1:
        raise InvalidValue(
            f"quantile {options.quantile:g} is not between 0 and 1", hint="write 0.5 to plan without headroom"
        )


def with_headroom(demands: Sequence[Demand], options: PlanOptions) -> tuple[list[Demand], list[str]]:
    """Demands at the rate to plan for: the quantile of the requests in a second, as a normal distribution sees it.

    Returns notes on what is left out, too.
    """
    z = max(0.0, NormalDist().inv_cdf(options.quantile))
    planned = [
        msgspec.structs.replace(d, rate=max(LEAST_RATE, d.rate + z * d.variation * sqrt(d.rate)))
        for d in demands
        if d.rate > 0
    ]
    notes = [f"{d.model}: a rate of 0 needs no gpu-let" for d in demands if d.rate == 0]
    if z > 0 and planned:
        notes.append(f"planned for {options.quantile:.0%} of the seconds; --quantile 0.5 plans for the mean")
    return planned, notes


def hopeless(draft: Draft, demands: Sequence[Demand]) -> list[str]:
    """Why single demands can be met on no device, however many there are."""
    why = []
    timing = draft.timing
    for demand in demands:
        first = timing.row(demand.model, draft.grid)[1]
        best = timing.capacity(demand.model, draft.grid)
        if not best.batch:
            why.append(
                f"{demand.model}: one request takes {first:.3g} ms on a whole device; one that just missed another"
                f" waits {2 * first:.3g} ms, its SLO is {demand.slo_ms:g} ms"
            )
            continue
        model = draft.profiles.models[demand.model]
        need = draft.profiles.device.context_mib + model.weights_mib + model.activation_mib * best.batch
        if need > draft.memory:
            why.append(
                f"{demand.model}: needs {need:.0f} MiB at batch {best.batch};"
                f" a device has {draft.memory:.0f} MiB to fill"
            )
    return why


def least_gpus(draft: Draft, demands: Sequence[Demand]) -> int:
    """How many devices the demands take if nothing of any is wasted: what a search cannot do much better than."""
    ticks = sum(draft.timing.fluid_ticks(d.model, d.rate) for d in demands)
    return ceil(min(ticks / draft.grid, 1e9))


def too_few(draft: Draft, demands: Sequence[Demand], gpus: int, needed: int) -> tuple[str, ...]:
    """Why ``gpus`` devices do not do where ``needed`` are needed, with the demands that cost most."""
    timing = draft.timing
    costs = sorted(((timing.fluid_ticks(d.model, d.rate) / draft.grid, d.model) for d in demands), reverse=True)
    total = sum(cost for cost, _ in costs)
    names = ", ".join(f"{model} {cost:.2f}" for cost, model in costs[:3])
    return (
        f"{needed} GPUs are needed, there {'is' if gpus == 1 else 'are'} {gpus}",
        f"cut to measure and without neighbours the demands would cost {total:.2f} GPUs; the most: {names}",
    )
