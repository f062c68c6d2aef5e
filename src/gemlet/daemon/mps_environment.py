"""What a program gets of MPS: the variables for it, or why it cannot have the fraction it asks for. Pure.

A fraction is fixed when a program makes its context, so these variables decide it; a later `gemlet set` holds for the
programs that start after it. The driver's limit of memory is a second line behind the hook's: it holds for a process
that gets past the hook, is one process's and not the group's, and never below what the hook would grant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gemlet.config.quantities import MIB, exact_percent, format_share
from gemlet.errors import Refused
from gemlet.membership import PERCENTAGE, as_whole_devices
from gemlet.model import Priority
from gemlet.typed_command import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.daemon.mps_state import MpsStatus
    from gemlet.model import GroupSpec

_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_NOWHERE = "-none"  # at the end of a pipe directory: the program finds no control daemon
NONE: Mapping[str, int] = MappingProxyType({})
BELOW_NORMAL = "1"  # CUDA_MPS_CLIENT_PRIORITY: 0 is normal, 1 below it; there is nothing above


class NeedsMps(Refused):
    """A fraction of the multiprocessors was asked for where MPS cannot give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program that is about to start.

    sm: the fraction it asks for itself, None to take its group's. outside: it must not use MPS. pipe_directory: the one
    its own environment names, None if it names none or gemlet's; pipe_alive: a control daemon lives there.
    one_device: it sees one device only, so that the driver's number of it is 0.
    """

    uid: int
    sm: float | None = None
    outside: bool = False
    pipe_directory: str | None = None
    pipe_alive: bool = False
    one_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsEnvironment:
    """``variables`` to set; ``in_force``: whether the group's fraction holds for this program; ``under``: whether a
    control daemon serves it."""

    variables: dict[str, str] = field(default_factory=dict)
    in_force: bool = True
    under: bool = False


def check(program: Program, status: MpsStatus, *, simulated: bool) -> None:
    """Raises `NeedsMps` if ``program`` asks for a fraction that it cannot get."""
    if program.sm is None or program.sm >= 1:
        return
    asked = f"--sm {format_share(program.sm)}"
    start = command("mps", "start", simulated=simulated)
    if program.outside:
        raise NeedsMps(f"{asked} needs MPS, and --no-mps forbids it", hint="leave out one of the two")
    if program.pipe_directory is not None:
        if program.pipe_alive:
            return
        raise NeedsMps(
            f"{asked} needs MPS, and no control daemon lives in {program.pipe_directory}",
            hint=f"unset CUDA_MPS_PIPE_DIRECTORY, which names that directory, and use `{start}`",
        )
    if status.state == "on":
        other = _other_user(program.uid, status)
        if other is None:
            return
        raise NeedsMps(
            f"{asked} needs MPS, which serves one user at a time, now uid {other}",
            hint="try again when its programs have ended, or run without --sm: programs then take turns",
        )
    why = {
        "off": "which does not run",
        "stopping": "which is being stopped",
        "failed": "whose control daemon ended unexpectedly",
    }[status.state]
    raise NeedsMps(f"{asked} needs MPS, {why}", hint=f"start it with `{start}`")


def place(
    program: Program, spec: GroupSpec, status: MpsStatus, *, simulated: bool, multiprocessors: Mapping[str, int] = NONE
) -> MpsEnvironment:
    """Where ``program`` of a group with ``spec`` runs. A program that cannot be under MPS takes turns.

    multiprocessors: how many each device has, by UUID; see `gemlet.membership.as_whole_devices`.
    """
    whole = spec.sm >= 1
    fraction = {} if whole else _percentage(spec.sm) | as_whole_devices(multiprocessors)
    nowhere = {_PIPE: f"{status.pipe_directory}{_NOWHERE}"}
    if program.outside:
        return MpsEnvironment(
            variables=nowhere, in_force=whole
        )  # also outside of a control daemon that CUDA would find itself
    if program.pipe_directory is not None:
        return MpsEnvironment(
            variables=fraction if program.pipe_alive else {},
            in_force=whole or program.pipe_alive,
            under=program.pipe_alive,
        )
    if status.state != "on" or _other_user(program.uid, status) is not None:
        # A simulated program must not find the real MPS of this machine.
        return MpsEnvironment(variables=nowhere if simulated else {}, in_force=whole)
    variables = {
        _PIPE: status.pipe_directory,
        "CUDA_MPS_LOG_DIRECTORY": status.log_directory,
    }
    variables |= fraction
    if spec.memory is not None and program.one_device:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, -(-spec.memory // MIB))}M"
    if spec.priority is Priority.BEST_EFFORT:
        variables["CUDA_MPS_CLIENT_PRIORITY"] = BELOW_NORMAL
    return MpsEnvironment(variables=variables, under=True)


def _percentage(sm: float) -> dict[str, str]:
    return {PERCENTAGE: exact_percent(sm)}


def _other_user(uid: int, status: MpsStatus) -> int | None:
    if status.uid not in (None, 0, uid):  # only root's control daemon starts servers for others
        return status.uid
    # A program of another user would wait in its first CUDA call until these have ended.
    return next((server.uid for server in status.servers if server.clients and server.uid not in (uid, -1)), None)
