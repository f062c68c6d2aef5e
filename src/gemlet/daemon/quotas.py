"""What one user's groups may have together: ceilings and defaults of `[users.NAME]`. Pure.

A user who may reserve everything takes it from users who come later, so a daemon that users share has a ceiling
for the minima even where nothing is configured. Root and the daemon's own user have no quota: they can change it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gemlet.config.quantities import exact_size, format_share, format_size
from gemlet.config.rules import EVERYBODY, SLACK, SMALLEST_MEMORY
from gemlet.errors import Refused
from gemlet.model import GROUP_FIELDS, Priority, UserSpec, UserTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gemlet.model import GroupSpec

SHARED_MIN = 0.5  # of a device that one user may reserve where the configuration does not say: the second finds half
SHARED_WEIGHT = 1.0  # of a user's groups with work together: more takes from all others
DEFAULT_WEIGHT = GROUP_FIELDS["weight"].default
_RANK = {Priority.BEST_EFFORT: 0, Priority.NORMAL: 1, Priority.LATENCY: 2}


class Quotas:
    """The quota of each uid. ``shared``: users who do not trust each other meet here. ``account``: the user whose a
    uid is, as one of /etc/subuid."""

    def __init__(self, *, shared: bool, account: Callable[[int], int] = lambda uid: uid) -> None:
        self._account = account
        self._others = UserSpec(
            name=EVERYBODY, min=SHARED_MIN if shared else None, weight=SHARED_WEIGHT if shared else None
        )
        self._default = self._others
        self._of: dict[int, UserSpec] = {}

    def configure(self, specs: Iterable[UserSpec], uid_of: Callable[[str], int]) -> list[str]:
        """Puts ``specs`` in force in place of all others; returns what could not be, as warnings."""
        self._of, self._others, warnings = {}, self._default, []
        for spec in specs:
            filled = replace(
                spec,
                min=self._default.min if spec.min is None else spec.min,
                weight=self._default.weight if spec.weight is None else spec.weight,
            )
            if spec.name == EVERYBODY:
                self._others = filled
                continue
            try:
                self._of[uid_of(spec.name)] = filled
            except Refused as error:
                warnings.append(f"users.{spec.name}: {error.message}")
        return warnings

    def of(self, uid: int) -> UserSpec:
        """The quota of ``uid``: its own, its user's, or everybody's."""
        return self._of.get(uid) or self._of.get(self._account(uid), self._others)

    def binds(self, uid: int) -> bool:
        """Whether the quota of ``uid`` says anything of a group of which nothing was said."""
        quota = self.of(uid)
        limits = (quota.max, quota.weight, quota.memory, quota.groups)
        return quota.defaults != UserTerms() or any(limit is not None for limit in limits)


def weights_in_force(weights: Mapping[str, float], active: Iterable[Collection[str]], most: float) -> dict[str, float]:
    """What the ``weights`` of one user's groups come to, so that together they are ``most`` at most on each device.

    They keep their proportions. ``active``: for each device the groups, of whatever user, that had work there lately.
    One that had none counts beside all others of its user: those who begin at once are not more, either. A weight above
    ``most`` was given by an administrator, and is the user's then.
    """
    most = max(most, *weights.values())
    begins = min(1.0, most / sum(weights.values()))
    parts: dict[str, float] = {}
    for there in active:
        mine = weights.keys() & there
        together = sum(weights[name] for name in mine)
        for name in mine:
            parts[name] = min(parts.get(name, 1.0), most / together)
    return {name: weight * parts.get(name, begins) for name, weight in weights.items()}


def nothing_of(spec: GroupSpec, quota: UserSpec) -> GroupSpec:
    """``spec`` of somebody who has used up the quota."""
    memory = 0 if quota.memory is not None else None
    weight = spec.weight if quota.weight is None else min(spec.weight, quota.weight)
    return replace(spec, min=0.0, max=0.0 if quota.max is None else quota.max, weight=weight, memory=memory)


def within(
    spec: GroupSpec,
    quota: UserSpec,
    beside: Collection[GroupSpec],
    others: Collection[GroupSpec],
    *,
    given: Collection[str] | None,
    who: str,
) -> GroupSpec:
    """``spec`` with what ``quota`` decides where nothing was said. Raises `Refused` for more than ``who`` may have.

    ``others``: the user's groups; ``beside``: those that have their minimum on this one's device. A minimum is in force
    on its device alone, all else wherever the programs go. ``given``: the fields that were asked for, None if
    the group is there and only changes.
    """
    values: dict[str, Any] = {}
    if given is not None:
        for name in ("min", "max", "weight", "memory", "priority"):
            value = getattr(quota.defaults, name)
            if name not in given and value is not None:
                values[name] = value
        if quota.max is not None and "max" not in given:
            values["max"] = min(values.get("max", 1.0), quota.max)
        if quota.weight is not None and "weight" not in given:
            values["weight"] = min(values.get("weight", DEFAULT_WEIGHT), quota.weight)
    chosen = replace(spec, **values)
    _check_shares(chosen, quota, beside, who)
    if quota.priority is not None and _RANK[chosen.priority] > _RANK[quota.priority]:
        raise Refused(
            f"priority {chosen.priority} is above what {who} may have", hint=f"use --priority {quota.priority}"
        )
    return _with_memory(chosen, quota, others, who, fill=given is not None and "memory" not in given)


def _check_shares(spec: GroupSpec, quota: UserSpec, others: Collection[GroupSpec], who: str) -> None:
    if quota.max is not None and spec.max > quota.max + SLACK:
        most = format_share(quota.max)
        raise Refused(f"max {format_share(spec.max)} is more than {who} may have, {most}", hint=f"use --max {most}")
    if quota.weight is not None and spec.weight > quota.weight + SLACK:
        raise Refused(
            f"weight {spec.weight:g} is more than {who} may have, {quota.weight:g}",
            hint=f"use weight {quota.weight:g}, or ask an administrator for [users.{who}]",
        )
    reserved = sum(other.min for other in others)
    if quota.min is not None and spec.min > 0 and reserved + spec.min > quota.min + SLACK:
        left = max(0.0, quota.min - reserved)
        raise Refused(
            f"{who} may reserve {format_share(quota.min)} of a device, of which {format_share(reserved)} is taken",
            hint=f"use --min {int(left * 100 + 1e-6)}% or less, or ask an administrator for [users.{who}]",
        )


def _with_memory(spec: GroupSpec, quota: UserSpec, others: Collection[GroupSpec], who: str, *, fill: bool) -> GroupSpec:
    if quota.memory is None:
        return spec
    left = max(0, quota.memory - sum(other.memory or 0 for other in others))
    if spec.memory is None and fill and left >= SMALLEST_MEMORY:
        return replace(spec, memory=left)
    if spec.memory is None or spec.memory > left:
        asked = "a group without a limit" if spec.memory is None else format_size(spec.memory)
        some = left >= SMALLEST_MEMORY
        raise Refused(
            f"{who} has {format_size(left)} of {format_size(quota.memory)} of memory left, not enough for {asked}",
            hint=f"use --memory {exact_size(left)} or less" if some else "end other programs, or share their group",
        )
    return spec
