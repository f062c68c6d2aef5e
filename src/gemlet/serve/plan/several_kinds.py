"""A plan over several kinds of device: rates are shared out among the kinds, and each kind is planned by itself, with
the profiles of that kind. Pure.

Which kind a model goes to is decided by what its rate costs on each, in devices: the model that would lose most on
another kind, in proportion, chooses first and takes the kind that costs it least. It is divided only if no kind has
room for all of it. Costs are those of gpu-lets cut to measure, so a kind may turn out too full: it then gets less, a
few times. All models on one kind are tried, too, and of the plans found the one with the fewest devices is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING

import msgspec

from gemlet.serve.plan.model import Infeasible, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.serve.plan.model import Demand, Gpu

ROUNDS = 8  # in which a kind that was too full gets less
LESS = 0.9  # of what it had
LEAST = 0.01  # devices: a model is not divided for less
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Kind:
    """The devices of one kind: ``slots`` are their numbers in the plan, from which ``plan`` counts from 0.

    costs: devices for the whole rate of each model with a profile; infinite where the kind cannot serve it in time.
    """

    name: str
    slots: tuple[int, ...]
    costs: Mapping[str, float]
    plan: Callable[[Sequence[Demand], Plan | None], Plan | Infeasible]

    def cost(self, model: str) -> float:
        return self.costs.get(model, inf)


Shares = dict[str, dict[str, float]]  # the part of each model's rate, by kind and model


def plan(kinds: Sequence[Kind], demands: Sequence[Demand], previous: Plan | None, policy: str) -> Plan | Infeasible:
    """The demands, each with a profile for one of these kinds at least, on their devices."""
    wanted = [demand for demand in demands if demand.rate > 0]
    for demand in wanted:
        if not any(isfinite(kind.cost(demand.model)) for kind in kinds):
            return Infeasible(policy=policy, why=_hopeless(kinds, demand))
    return _Search(kinds, demands, wanted, previous).run(policy)


class _Search:
    """``why``: of what was tried in vain."""

    def __init__(
        self, kinds: Sequence[Kind], demands: Sequence[Demand], wanted: Sequence[Demand], previous: Plan | None
    ) -> None:
        self.kinds, self.demands, self.wanted, self.previous = kinds, demands, wanted, previous
        self.before = {kind.name: _before(kind, previous) for kind in kinds} if previous is not None else {}
        self.why: list[str] = []

    def run(self, policy: str) -> Plan | Infeasible:
        found = []
        for shares in self._attempts():
            made = self._planned(shares, [])
            if made is not None and made.kept:
                return made
            found += [made] if made is not None else []
        least = ceil(sum(min(kind.cost(demand.model) for kind in self.kinds) for demand in self.wanted))
        if not found or min(len(made.gpus) for made in found) > least:
            filled = self._filled()
            found += [filled] if filled is not None else []
        if found:
            return min(found, key=lambda made: len(made.gpus))
        return Infeasible(policy=policy, why=tuple(dict.fromkeys([*_too_few(self.kinds, self.wanted), *self.why])))

    def _attempts(self) -> list[Shares]:
        """Shares to try as they are: those of the previous plan, and all models on one kind."""
        before = shares_of(self.kinds, self.wanted, self.previous) if self.previous is not None else None
        alone = [
            {kind.name: {demand.model: 1.0 for demand in self.wanted}}
            for kind in self.kinds
            if sum(kind.cost(demand.model) for demand in self.wanted) <= len(kind.slots)
        ]
        return [before, *alone] if before is not None else alone

    def _filled(self) -> Plan | None:
        """The kinds together, each as full as it can be."""
        full = {kind.name: 1.0 for kind in self.kinds}
        for _ in range(ROUNDS):
            shares = share_out(self.kinds, self.wanted, full)
            failed: list[str] = []
            made = self._planned(shares, failed) if shares is not None else None
            if made is not None or not failed or len(failed) == len(self.kinds):
                return made  # where all are too full, none can take what another leaves
            for name in failed:
                full[name] *= LESS
        return None

    def _planned(self, shares: Shares, failed: list[str]) -> Plan | None:
        """The kinds planned with these shares and put together; ``failed`` gets the kinds that have no plan."""
        plans: list[tuple[Kind, Plan]] = []
        for kind in self.kinds:
            there = shares.get(kind.name, {})
            if not there and self.wanted:
                continue
            made = kind.plan(_parts(self.demands, there), self.before.get(kind.name))
            if isinstance(made, Plan):
                plans.append((kind, made))
            else:
                self.why += [f"{kind.name}: {reason}" for reason in made.why]
                failed.append(kind.name)
        return None if failed else self._together(plans)

    def _together(self, plans: Sequence[tuple[Kind, Plan]]) -> Plan:
        gpus = [
            msgspec.structs.replace(gpu, index=kind.slots[gpu.index], device=kind.name)
            for kind, each in plans
            for gpu in each.gpus
        ]
        previous = self.previous
        kept = previous is not None and all(each.kept for _, each in plans)
        return Plan(
            policy=plans[0][1].policy,
            device=" and ".join(kind.name for kind, _ in plans),
            origin=" and ".join(dict.fromkeys(each.origin for _, each in plans)),
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
            demands=tuple(self.demands),
            notes=tuple(dict.fromkeys(note for _, each in plans for note in each.notes)) + tuple(self._left_out()),
            kept=kept,
            made_for=(previous.made_for or previous.demands) if kept and previous is not None else (),
        )

    def _left_out(self) -> list[str]:
        notes = [f"{demand.model}: a rate of 0 needs no gpu-let" for demand in self.demands if demand.rate == 0]
        for kind in self.kinds:
            without = ", ".join(demand.model for demand in self.wanted if demand.model not in kind.costs)
            notes += [f"not planned on {kind.name}, for which there is no profile: {without}"] if without else []
        return notes


def shares_of(kinds: Sequence[Kind], wanted: Sequence[Demand], plan: Plan) -> Shares | None:
    """How the plan shares these models out; None where it does not serve all of them, on kinds that can."""
    shares: Shares = {kind.name: _rates(kind, plan) for kind in kinds}
    for demand in wanted:
        total = sum(rates.get(demand.model, 0.0) for rates in shares.values())
        if total <= 0:
            return None
        for kind in kinds:
            if demand.model in shares[kind.name]:
                if not isfinite(kind.cost(demand.model)):
                    return None
                shares[kind.name][demand.model] /= total
    models = {demand.model for demand in wanted}
    return {name: {m: part for m, part in there.items() if m in models} for name, there in shares.items()}


def share_out(kinds: Sequence[Kind], wanted: Sequence[Demand], full: Mapping[str, float]) -> Shares | None:
    """By what models cost on each kind, of whose devices at most the part ``full`` is used; None: no room for all."""
    room = {kind.name: full[kind.name] * len(kind.slots) for kind in kinds}
    shares: Shares = {kind.name: {} for kind in kinds}
    for model in (demand.model for demand in sorted(wanted, key=lambda demand: _urgency(kinds, demand))):
        able = sorted((kind for kind in kinds if isfinite(kind.cost(model))), key=lambda kind: kind.cost(model))
        whole = next((kind for kind in able if kind.cost(model) <= room[kind.name] + ROUNDING), None)
        left = 1.0
        for kind in [whole] if whole is not None else able:
            part = min(left, room[kind.name] / max(kind.cost(model), ROUNDING))
            if left <= ROUNDING or (part < left and part * kind.cost(model) < LEAST):
                continue
            shares[kind.name][model] = part
            room[kind.name] -= part * kind.cost(model)
            left -= part
        if left > ROUNDING:
            return None
    return shares


def _urgency(kinds: Sequence[Kind], demand: Demand) -> tuple[float, float, str]:
    """Least first: what loses most on its second best kind, then what costs most."""
    costs = sorted(kind.cost(demand.model) for kind in kinds)
    second = costs[1] if len(costs) > 1 else inf
    return (-second / max(costs[0], ROUNDING), -costs[0], demand.model)


def _before(kind: Kind, previous: Plan) -> Plan:
    """What the previous plan had on the devices of this kind, as the planner of one kind knows it."""
    places = {slot: place for place, slot in enumerate(kind.slots)}
    rates, totals = _rates(kind, previous), dict[str, float]()
    for task in previous.tasks():
        totals[task.model] = totals.get(task.model, 0.0) + task.rate
    parts = {model: rate / totals[model] for model, rate in rates.items() if totals[model] > 0}
    return msgspec.structs.replace(
        previous,
        device=kind.name,
        gpus=tuple(msgspec.structs.replace(gpu, index=places[gpu.index], device="") for gpu in _gpus(kind, previous)),
        demands=tuple(_parts(previous.demands, parts)),
        made_for=tuple(_parts(previous.made_for, parts)),
    )


def _gpus(kind: Kind, plan: Plan) -> list[Gpu]:
    """Those of the plan that are of this kind now, and were when it was made."""
    return [gpu for gpu in plan.gpus if gpu.index in kind.slots and gpu.device == kind.name]


def _rates(kind: Kind, plan: Plan) -> dict[str, float]:
    rates: dict[str, float] = {}
    for task in (task for gpu in _gpus(kind, plan) for gpu_let in gpu.gpu_lets for task in gpu_let.tasks):
        rates[task.model] = rates.get(task.model, 0.0) + task.rate
    return rates


def _parts(demands: Sequence[Demand], parts: Mapping[str, float]) -> list[Demand]:
    return [msgspec.structs.replace(d, rate=d.rate * parts[d.model]) for d in demands if d.model in parts]


def _hopeless(kinds: Sequence[Kind], demand: Demand) -> tuple[str, ...]:
    """Why no kind can serve it, each kind's reasons."""
    why = []
    for kind in kinds:
        made = kind.plan([demand], None) if demand.model in kind.costs else None
        reasons = made.why if isinstance(made, Infeasible) else (f"there is no profile of {demand.model}",)
        why += [f"{kind.name}: {reason}" for reason in reasons]
    return tuple(why)


def _too_few(kinds: Sequence[Kind], wanted: Sequence[Demand]) -> list[str]:
    there = " and ".join(f"{len(kind.slots)} {kind.name}" for kind in kinds)
    costs = [(sum(kind.cost(demand.model) for demand in wanted), kind.name) for kind in kinds]
    alone = " or ".join(f"{cost:.2f} {name}" for cost, name in costs if isfinite(cost))
    needs = f"; cut to measure, the demands would cost {alone}" if alone else ""
    return [f"no plan was found on {there}{needs}"]
