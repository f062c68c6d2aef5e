"""What must hold for groups, wherever they come from: a file, the command line or the daemon's interface."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet.config.share import check_share, format_share
from gemlet.config.size import check_size
from gemlet.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gemlet.model import GroupSpec

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
        raise InvalidValue(f"name {name!r} is not valid Unicode", hint="use characters that UTF-8 can encode") from None
    if size > MAX_NAME_BYTES:
        raise InvalidValue(f"the name is {size} bytes long in UTF-8", hint=f"at most {MAX_NAME_BYTES} bytes fit")
    for character in name:
        if not character.isprintable():  # a terminal would act on it instead of showing it
            raise InvalidValue(f"name {name!r} contains the unprintable character {character!r}", hint="remove it")
    return name


def violations(group: GroupSpec) -> Iterator[Violation]:
    """Every rule that ``group`` breaks; none if the daemon can keep what it promises."""
    for field, check in _CHECKS.items():
        try:
            check(getattr(group, field))
        except InvalidValue as error:
            yield Violation(field, error.message, error.hint)
    if 0 <= group.max < group.min <= 1:
        yield Violation(
            "min",
            f"min {format_share(group.min)} is more than max {format_share(group.max)}",
            "min is guaranteed and max is the limit; have the two been swapped?",
        )


def _check_memory(memory: int | None) -> None:
    if memory is not None:
        check_size(memory)


def check_weight(weight: float) -> float:
    """``weight`` as a float. Raises InvalidValue unless it is positive and finite."""
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidValue(f"weight {weight:g} is not a positive number", hint="1 is the weight of an ordinary group")
    return float(weight)


def check_sm(sm: float) -> float:
    """``sm`` as a float. Raises InvalidValue unless it is in 0..1 and not 0: no kernel runs on no multiprocessor."""
    if check_share(sm) == 0:
        raise InvalidValue("sm is 0", hint="leave it out for all multiprocessors")
    return float(sm)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "name": check_name,
    "min": check_share,
    "max": check_share,
    "memory": _check_memory,
    "resident": _check_memory,
    "weight": check_weight,
    "sm": check_sm,
}


def warnings(groups: Sequence[GroupSpec]) -> Iterator[tuple[str | None, str]]:
    """What is allowed but probably not meant: (name of the group, or None for all of them; text)."""
    total = math.fsum(group.min for group in groups)
    if total > 1 + 1e-9:
        yield None, f"the guaranteed shares add up to {format_share(total)}; when all groups want time, each gets less"
    for group in groups:
        if group.max == 0:
            yield group.name, f"max of group {group.name!r} is 0: its programs will wait for ever"
        if group.memory is not None and group.resident is not None and group.resident >= group.memory:
            text = "is not less than its memory, so it never binds; its programs' memory can move all the same"
            yield group.name, f"resident of group {group.name!r} {text}"
        if group.memory == 0:
            yield group.name, f"memory of group {group.name!r} is 0: its programs cannot allocate anything"
