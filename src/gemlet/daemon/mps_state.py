"""MPS as this daemon sees it: its states, obstacles to it, and the texts for both. Pure.

The state comes from two facts: what the daemon meant, which it wrote down when it started or stopped MPS, and whether
the control daemon lives. Nothing here, and nothing that uses it, starts a control daemon again by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from gemlet.typed_command import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gemlet.devices.device import DeviceInfo

State = Literal["off", "on", "stopping", "failed"]
Intent = Literal["on", "stopping"]
NAMED = 5  # programs by name in a message; more are counted


class MpsClient(msgspec.Struct, frozen=True, kw_only=True):
    """One program under MPS. ``group`` is empty for one that is not (yet) a client of gemlet's."""

    pid: int
    uid: int
    command: str
    group: str = ""


class MpsServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MPS server: serves one user. ``status`` is the control daemon's word: ACTIVE, FAULT, ..."""

    pid: int
    uid: int
    status: str
    clients: tuple[MpsClient, ...] = ()


class MpsControl(msgspec.Struct, frozen=True, kw_only=True):
    """A control daemon that is not gemlet's."""

    pid: int
    uid: int
    pipe_directory: str


class MpsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """MPS as this daemon knows it. ``problem``: what is not known; ``pid``, ``uid``: the control daemon's, if it lives.

    state: off; on; stopping (takes no new programs, goes with its last one); failed (ended without being asked to).
    """

    state: State = "off"
    pid: int | None = None
    uid: int | None = None
    pipe_directory: str = ""
    log_directory: str = ""
    program: str = ""
    problem: str | None = None
    servers: tuple[MpsServer, ...] = ()
    foreign: tuple[MpsControl, ...] = ()

    def clients(self) -> tuple[MpsClient, ...]:
        """The programs of all servers."""
        return tuple(client for server in self.servers for client in server.clients)


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the way of starting MPS. One that is not ``fatal`` is only said."""

    message: str
    hint: str
    fatal: bool


def decide(intent: Intent | None, *, alive: bool) -> State:
    """The state, from what was meant and what is."""
    if alive:
        return "stopping" if intent == "stopping" else "on"
    return "failed" if intent == "on" else "off"


def with_groups(servers: Iterable[MpsServer], groups: Mapping[int, str]) -> tuple[MpsServer, ...]:
    """``servers`` with the group of each client, from ``groups`` by pid."""
    return tuple(
        msgspec.structs.replace(
            server,
            clients=tuple(msgspec.structs.replace(c, group=groups.get(c.pid, "")) for c in server.clients),
        )
        for server in servers
    )


def obstacles(
    foreign: Sequence[MpsControl], devices: Sequence[DeviceInfo], *, shared: bool = False, uid: int = 0
) -> list[Obstacle]:
    """What stands in the way of a control daemon of our own, under ``uid``. ``shared``: for programs of all users."""
    found = []
    if shared and uid != 0:
        found.append(
            Obstacle(
                message=f"this daemon serves all users but runs as uid {uid}, and its MPS can serve only uid {uid}",
                hint="run the system's daemon as root: only root's MPS serves other users",
                fatal=True,
            )
        )
    found += [
        Obstacle(
            message=f"another MPS control daemon runs: pid {control.pid} of uid {control.uid}, "
            f"in {control.pipe_directory}",
            hint="stop that one (as its user: echo quit | "
            f"CUDA_MPS_PIPE_DIRECTORY={quoted(control.pipe_directory)} nvidia-cuda-mps-control), use it "
            f"(CUDA_MPS_PIPE_DIRECTORY={quoted(control.pipe_directory)} gemlet run --sm 30% -- COMMAND), or --force",
            fatal=True,
        )
        for control in foreign
    ]
    prohibited = [device for device in devices if device.compute_mode == "prohibited"]
    found += [
        Obstacle(
            message=f"device {device.index} is in compute mode prohibited: no program can use it",
            hint=f"ask an administrator for `nvidia-smi -i {device.index} -c DEFAULT`",
            fatal=len(prohibited) == len(devices),
        )
        for device in prohibited
    ]
    for device in devices:
        if device.compute_mode == "exclusive-process" and device.processes:
            pids = ", ".join(str(process.pid) for process in device.processes)
            found.append(
                Obstacle(
                    message=f"device {device.index} is in compute mode exclusive-process and pid {pids} uses it: "
                    "MPS's server cannot until that ends",
                    hint=f"end it, or: nvidia-smi -i {device.index} -c DEFAULT (an administrator)",
                    fatal=False,
                )
            )
    return found


def named(clients: Sequence[MpsClient]) -> str:
    """The programs, for a message: ``python (4711, group train), a.out (4712)``."""
    named = [
        f"{client.command or 'a program'} ({client.pid}{f', group {client.group}' if client.group else ''})"
        for client in clients[:NAMED]
    ]
    more = len(clients) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
