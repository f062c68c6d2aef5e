"""Two imaginary kinds of device, `one` and `other`, for tests of what plans and servers do with several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.serve.plan.planner import inventory
from gemlet.serve.profiles import kinds
from tests.unit.serve.cases import world

if TYPE_CHECKING:
    from gemlet.serve.plan.model import Inventory
    from gemlet.serve.profiles.profile import ModelProfile, Profiles


def named(profiles: Profiles, name: str) -> Profiles:
    """The same of a device of this name."""
    return msgspec.structs.replace(profiles, device=msgspec.structs.replace(profiles.device, name=name))


def two(
    one: dict[str, ModelProfile], other: dict[str, ModelProfile], counts: tuple[int, int] = (1, 1)
) -> tuple[kinds.Known, Inventory]:
    """What is known of their models, and their devices: those of `one` first."""
    known = kinds.of_counts([(named(world(**one), "one"), counts[0]), (named(world(**other), "other"), counts[1])])
    return known, inventory(known, range(sum(counts)))
