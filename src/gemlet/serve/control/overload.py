"""A plan for part of the demand, where no plan serves all of it: too few devices, or a model that no device can serve
in time. Pure.

In this order: without headroom for bursts; then the same part of every model's rate, the largest that has a plan; then
without the models that have no place even at their lowest rate, those with the fewest requests left out first. The
dispatcher refuses the requests beyond the planned rates, and says so to their senders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.profiles.kinds import Known

STEPS = 5  # of the search for the part: within 3 % of the largest
LEAST = 1 / 64
MEAN = 0.5  # the quantile that plans for the rate itself


class Planner(Protocol):
    """gemlet.serve.plan.planner.plan, or one like it."""

    def __call__(
        self,
        profiles: Known,
        demands: Sequence[Demand],
        there: Inventory,
        previous: Plan | None = None,
        options: PlanOptions | None = None,
        *,
        policy: str = "nway+type",
    ) -> Plan | Infeasible: ...


@dataclass(frozen=True, slots=True)
class Overload:
    """``part`` of every rate is planned for; ``without``: models that are not served. ``plan`` None: nothing can be."""

    plan: Plan | None
    part: float
    without: tuple[str, ...]
    notes: tuple[str, ...]


class Attempt(Protocol):
    def __call__(self, demands: Sequence[Demand], options: PlanOptions) -> Plan | Infeasible: ...


def best_effort(attempt: Attempt, demands: Sequence[Demand], options: PlanOptions, most: float = 1.0) -> Overload:
    """The best plan found for a part of ``demands``. There is no plan for more than the part ``most`` of them."""
    exact = msgspec.structs.replace(options, quantile=MEAN)
    made = attempt(demands, exact) if most >= 1 else None
    if isinstance(made, Plan):
        return Overload(made, 1.0, (), ("planned without headroom: there are too few devices",))
    within = partial(attempt, options=exact)
    part, found = _largest_part(within, demands, min(1.0, most))
    if found is not None:
        return Overload(found, part, (), (f"planned for {part:.0%} of the rates: there are too few devices",))
    served = _placeable(within, demands, min(1.0, most))
    part, found = _largest_part(within, served, min(1.0, most))
    left_out = tuple(demand.model for demand in demands if demand not in served)
    notes = [f"not served: {', '.join(left_out)}: no place even at its lowest rate"]
    if part < 1:
        notes.append(f"planned for {part:.0%} of the rates: there are too few devices")
    return Overload(found, part, left_out, tuple(notes))


class Within(Protocol):
    def __call__(self, demands: Sequence[Demand]) -> Plan | Infeasible: ...


def _largest_part(within: Within, demands: Sequence[Demand], most: float) -> tuple[float, Plan | None]:
    if not demands:
        return 0.0, None
    low, high, best = 0.0, most, None
    for _ in range(STEPS):
        part = (low + high) / 2
        made = within(_scaled(demands, part))
        if isinstance(made, Plan):
            low, best = part, made
        else:
            high = part
    if best is None:
        made = within(_scaled(demands, LEAST * most))
        low, best = (LEAST * most, made) if isinstance(made, Plan) else (0.0, None)
    return low, best


def _placeable(within: Within, demands: Sequence[Demand], most: float) -> list[Demand]:
    """Models that have a place together at their lowest rates, those with the most requests first."""
    served: list[Demand] = []
    for demand in sorted(demands, key=lambda d: (-d.rate, d.model)):
        if isinstance(within(_scaled([*served, demand], LEAST * most)), Plan):
            served.append(demand)
    return [demand for demand in demands if demand in served]


def _scaled(demands: Sequence[Demand], part: float) -> list[Demand]:
    return [msgspec.structs.replace(demand, rate=demand.rate * part) for demand in demands]
