"""What must hold for groups, wherever they come from: a file, the command line or the daemon's interface."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.config import group_fields
from gemlet.config.quantities import MIB, format_share
from gemlet.errors import InvalidValue
from gemlet.model import GROUP_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gemlet.model import GroupSpec

EVERYBODY = "*"  # of [users."*"]: a user without a section
SMALLEST_MEMORY = MIB  # a context takes a hundred times as much, so a smaller value lacks its unit
SLACK = 1e-9  # of sums of shares: 0.1 + 0.2 + 0.7 is 1
MAX_NAME_BYTES = 255  # kGroupNameBytes of native/wire.h, less the final NUL


@dataclass(frozen=True, slots=True)
class Violation:
    """``field`` of a GroupSpec breaks a rule."""

    field: str
    message: str
    hint: str | None = None


def check_name(name: str) -> str:
    """``name`` itself. Raises InvalidValue unless it is printable and fits the wire; any script and '/' are welcome."""
    if not name:
        raise InvalidValue("the name is empty", hint="give the group a name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidValue(
            f"name {name!r} is not valid Unicode: expected characters that UTF-8 can encode", hint="choose another name"
        ) from None
    if size > MAX_NAME_BYTES:
        raise InvalidValue(
            f"the name is {size} bytes long in UTF-8: expected at most {MAX_NAME_BYTES}",
            hint=f"shorten it to at most {MAX_NAME_BYTES} bytes",
        )
    for character in name:
        if not character.isprintable():  # a terminal would act on it instead of showing it
            raise InvalidValue(f"name {name!r} contains the unprintable character {character!r}", hint="remove it")
    return name


def violations(group: GroupSpec) -> Iterator[Violation]:
    """Every rule that ``group`` breaks; none if the daemon can keep what it promises."""
    try:
        check_name(group.name)
    except InvalidValue as error:
        yield Violation("name", error.message, error.hint)
    for name, field in GROUP_FIELDS.items():
        try:
            group_fields.check(field, getattr(group, name))
        except InvalidValue as error:
            yield Violation(name, f"{name}: {error.message}", error.hint)
    if 0 <= group.max < group.min <= 1:
        yield Violation(
            "min",
            f"min {format_share(group.min)} is more than max {format_share(group.max)}",
            "min is guaranteed and max is the limit: check that the two have not been swapped, or raise max, too",
        )


def warnings(groups: Sequence[GroupSpec]) -> Iterator[tuple[str | None, str]]:
    """What is allowed but probably not meant: (name of the group, or None for all of them; text)."""
    total = math.fsum(group.min for group in groups)
    if total > 1 + SLACK:
        yield None, f"the guaranteed shares add up to {format_share(total)}; when all groups want time, each gets less"
    for group in groups:
        if group.max == 0:
            yield group.name, f"max of group {group.name!r} is 0: its programs will never run"
        if group.memory is not None and group.resident is not None and group.resident >= group.memory:
            text = "is not less than its memory, so it never binds; its programs' memory can move all the same"
            yield group.name, f"resident of group {group.name!r} {text}"
        if group.memory == 0:
            yield group.name, f"memory of group {group.name!r} is 0: its programs cannot allocate anything"
        elif group.memory is not None and group.memory < SMALLEST_MEMORY:
            yield group.name, f"memory of group {group.name!r} is {group.memory} bytes: a unit seems to be missing"
