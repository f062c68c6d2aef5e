"""Warnings that the daemon gives with what it grants, when a program starts or a group changes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from gemlet.config import group_fields
from gemlet.config.quantities import MIB, format_size
from gemlet.model import GROUP_FIELDS, GroupSpec, Priority
from gemlet.typed_command import on_group

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALLEST_CONTEXT = 64 * MIB  # before any was measured; low on purpose, for a warning must not be wrong

SHORTEST_SLIP = 4  # shorter names are one letter from too many others


class WarningMessage(TypedDict):
    """``message``: what is so. ``hint``: what to do about it."""

    message: str
    hint: str


def no_device(problem: str) -> WarningMessage:
    """No device is known, and this is why."""
    return WarningMessage(
        message=f"no GPU was found: {problem}",
        hint="use a simulated machine with --simulate, or see what is missing with `gemlet doctor`",
    )


def not_written_down(failure: str, *, group: str) -> WarningMessage:
    """What the next daemon would not know, and this is why."""
    return WarningMessage(
        message=f"group {group} is in force, and not written down: {failure}",
        hint="make room on the disk: a daemon started after a kill would not know the group, or its limits of before",
    )


def ruled_by(owner: str, *, group: str) -> WarningMessage:
    """The group that a user joins belongs to another user."""
    return WarningMessage(
        message=f"group {group} is {owner}'s, who may change its limits at any time",
        hint="choose another --group if you did not mean to share it",
    )


def perhaps_misspelt(name: str, configured: Iterable[str]) -> WarningMessage | None:
    """A group that has just been made without limits, if it is likely that one of the ``configured`` was meant."""
    meant = next((other for other in configured if _one_slip(name, other)), None)
    if meant is None:
        return None
    return WarningMessage(
        message=f"there was no group {name}: a new one was made, without limits",
        hint=f"did you mean {meant}, which the configuration has?",
    )


def memory_for_nothing(limit: int | None, measured: int, *, group: str, simulated: bool) -> WarningMessage | None:
    """A limit that contexts alone pass, if this is one. ``measured``: bytes a context takes here, 0 if unknown."""
    if limit is None or limit >= (measured or SMALLEST_CONTEXT):
        return None
    if measured:
        takes, what = f"{format_size(measured)} here", "its contexts will be refused"
    else:  # only the first one shows how much it takes
        takes = f"at least {format_size(SMALLEST_CONTEXT)}"
        what = "its first context is created, and every later allocation is refused"
    raised = on_group("set", group, "--memory", "2GiB", simulated=simulated)
    return WarningMessage(
        message=f"{format_size(limit)} of memory is less than one CUDA context takes ({takes}): {what}",
        hint=f"raise it: `{raised}`",
    )


def held_by_mps(before: int | None, after: int | None, *, under_mps: bool) -> WarningMessage | None:
    """A limit that rose while programs run for which the driver holds the old one, if this is one."""
    if not under_mps or before is None or (after is not None and after <= before):
        return None
    return WarningMessage(
        message=f"programs under MPS that run already are held to {format_size(before)} by the driver",
        hint="start them again: the driver's limit is fixed when a program starts",
    )


def memory_beyond_device(limit: int | None, largest: int | None, *, movable: bool) -> WarningMessage | None:
    """A limit that no device can reach, if this is one. ``largest``: bytes of the largest device, None if unknown."""
    if limit is None or largest is None or limit <= largest or movable:
        return None
    return WarningMessage(
        message=f"{format_size(limit)} of memory is more than any device here has ({format_size(largest)})",
        hint="ask for less, or move what does not fit to the host with --resident SIZE",
    )


def changed_for_others(before: GroupSpec | None, after: GroupSpec, *, programs: int) -> WarningMessage | None:
    """A program that joins changes the limits of ``programs`` that run, if it does. ``before``: the limits that these
    started with, None if the group is new."""
    if before is None or not programs:
        return None
    changes = [
        f"{name} from {group_fields.shown(field, old)} to {group_fields.shown(field, new)}"
        for name, field in GROUP_FIELDS.items()
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]
    if not changes:
        return None
    whom = "a program that runs" if programs == 1 else f"{programs} programs that run"
    return WarningMessage(
        message=f"this changes group {after.name} for {whom} in it: {', '.join(changes)}",
        hint="join it without limits, or choose another --group",
    )


def slowdown_for_nothing(spec: GroupSpec) -> WarningMessage | None:
    """The warning for a bound on slowdown where no request is bounded, if it is one."""
    if spec.priority == Priority.LATENCY or spec.slowdown == GroupSpec(name=spec.name).slowdown:
        return None
    return WarningMessage(
        message=f"a slowdown of {spec.slowdown:g} bounds requests of priority latency: this group's is {spec.priority}",
        hint="add --priority latency, or leave out --slowdown",
    )


def resident_for_nothing(resident: int | None, limit: int | None) -> WarningMessage | None:
    """The warning for a resident limit that is no less than the memory limit, if this is one: no memory will ever move
    for it."""
    if resident is None or limit is None or resident < limit:
        return None
    part = "all of" if resident == limit else "more than"
    return WarningMessage(
        message=f"{format_size(resident)} on the device at a time is {part} its {format_size(limit)} of memory",
        hint="choose a --resident below --memory",
    )


def _one_slip(typed: str, meant: str) -> bool:
    """Whether one is the other but for case, a letter too many or too few, or two that have changed places. No other
    letter, and no digit: people name groups team-a and team-b, job-1 and job-11."""
    typed, meant = typed.lower(), meant.lower()
    if typed == meant:
        return True
    short, long = sorted((typed, meant), key=len)
    first = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    if len(short) < SHORTEST_SLIP or not long[first].isalpha():
        return False
    if len(short) == len(long):
        return short == long[:first] + long[first : first + 2][::-1] + long[first + 2 :]
    return short == long[:first] + long[first + 1 :]
