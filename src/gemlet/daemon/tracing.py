"""The last steps between programs and the arbiter, for `gemlet trace`: read from the native server in parts.

They are always there: to record costs the same whether anybody reads or not. A part takes microseconds of the server's
mutex, and others' requests are answered between two of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon.protocol import TRACE_SCHEMA
from gemlet.decoding import convert
from gemlet.errors import Refused
from gemlet.typed_command import command

if TYPE_CHECKING:
    from gemlet.daemon.native import Server

PART = 2048  # steps of a look
MOST = 20_000  # steps looked at for an answer; as Python's objects they take some 4 MB
NEVER = 2**63 - 1  # ns
# What of other users' programs is for anybody on a shared daemon: who takes turns, and why, as the status says it.
FOR_ALL = frozenset({"standing", "joins", "leaves"})

Step = tuple[int, int, str, int]  # ns of CLOCK_MONOTONIC, client, what, value (native/server/trace.hpp)


class TracedClient(msgspec.Struct, frozen=True, kw_only=True):
    """A program on one device. ``state`` and ``why``: now, or when it left."""

    client: int
    pid: int
    uid: int
    command: str
    group: str
    device: int
    state: str
    why: str
    name: str = ""


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the programs on the devices of ``group``, oldest first.

    From ``begin_ns`` to ``end_ns`` of CLOCK_MONOTONIC; ``end_s`` is the latter in seconds since 1970. ``lost``: steps
    since then, or since the number asked for, are forgotten. ``next``: the number of the step after the last; ``end``:
    that of the step after the last there is. Where it is larger, ask for those after ``next``.
    """

    schema: int = TRACE_SCHEMA
    simulated: bool = False
    group: str
    begin_ns: int
    end_ns: int
    end_s: float
    lost: bool
    next: int
    end: int = 0
    devices: dict[str, str]
    clients: list[TracedClient]
    steps: list[Step]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The last ``seconds``, or all steps numbered ``after`` and later; ``uid``: None for somebody who may see all."""

    group: str
    seconds: float
    after: int | None
    uid: int | None


async def read(
    server: Server, asked: Asked, *, names: dict[int, str], devices: dict[int, str], simulated: bool
) -> Traced:
    """What is there. ``names``: of programs, by pid. Raises `Refused` for a group that is on no device."""
    now = server.clock()
    begin = now - int(asked.seconds * 1e9)
    known = convert(server.traced(), list[TracedClient])
    where = {client.device for client in known if client.group == asked.group}
    if not where:
        raise Refused(
            f"no program of group {asked.group} has used a device lately",
            hint=f"name a group that `{command('status', simulated=simulated)}` lists",
        )
    beside = {client.client: client for client in known if client.device in where}
    end, _ = server.trace_at(NEVER)
    number, lost = server.trace_at(begin)
    if asked.after is not None:
        number, lost = min(asked.after, end), False
    steps: list[Step] = []
    room = MOST
    while number < end and room > 0:
        part, number, gap = server.trace(number, min(PART, room, end - number))
        lost = lost or gap
        room -= len(part)
        steps += [step for step in part if _visible(beside.get(step[1]), step, asked.uid)]
        await asyncio.sleep(0)
    present = {step[1] for step in steps}
    return Traced(
        simulated=simulated,
        group=asked.group,
        begin_ns=begin,
        end_ns=now,
        end_s=time.time(),
        lost=lost,
        next=number,
        end=end,
        devices={str(index): name for index, name in devices.items() if index in where},
        clients=[
            msgspec.structs.replace(client, name=names.get(client.pid, "") if client.state != "gone" else "")
            for client in beside.values()
            if client.state != "gone" or client.client in present
        ],
        steps=steps,
    )


def _visible(client: TracedClient | None, step: Step, uid: int | None) -> bool:
    return client is not None and (uid is None or client.uid == uid or step[2] in FOR_ALL)
