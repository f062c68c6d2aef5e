"""Why a group runs, waits or is refused memory, in sentences: the policy's own reason first, then the arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.config.group_fields import phrases
from gemlet.config.quantities import format_share, format_size
from gemlet.daemon.group_entry import no_group
from gemlet.daemon.protocol import EXPLAIN_SCHEMA
from gemlet.model import GroupSpec, terms
from gemlet.typed_command import command, on_group

if TYPE_CHECKING:
    from gemlet.daemon.events import Event
    from gemlet.daemon.mps_state import MpsStatus
    from gemlet.daemon.status import ClientStatus, DeviceStatus, GroupLimits, GroupStatus, Status

NEARLY_FULL = 0.9
NOTICEABLE = 0.03  # shares closer than this to each other are called the same


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``lines`` for people, ``hint`` what could be done, or None. ``schema`` numbers the shape."""

    group: str
    lines: tuple[str, ...]
    hint: str | None
    simulated: bool = False
    schema: int = EXPLAIN_SCHEMA


def explain(status: Status, name: str) -> Explanation:
    """Explains one group. Raises `gemlet.errors.Refused` if there is none of that name."""
    limits = next((group for group in status.groups if group.name == name), None)
    here = [(device, group) for device in status.devices for group in device.groups if group.name == name]
    if limits is None and not here:
        raise no_group(name, (group.name for group in status.groups))
    lines = [_promise(limits)] if limits else [f"{name}: known only from its clients"]
    hint = None
    if not any(group.clients for _, group in here):
        lines.append("it has no clients, so it neither uses nor waits for anything")
        hint = command("run", "--group", name, "--", "COMMAND", simulated=status.simulated)
    for device, group in here:
        if group.clients:
            more, advice = _on_device(device, group, status.mps, simulated=status.simulated)
            lines += more
            hint = hint or advice
    lines += [_event(event) for event in status.events if event.group == name and event.kind in ("refused", "denied")][
        -3:
    ]
    return Explanation(group=name, lines=tuple(lines), hint=hint, simulated=status.simulated)


def _promise(limits: GroupLimits) -> str:
    said = phrases(terms(limits, GroupSpec), also={"min", "max", "memory", "priority"})
    return f"{limits.name}: {', '.join(phrase for _, phrase in said)}"


def _on_device(
    device: DeviceStatus, group: GroupStatus, mps: MpsStatus, *, simulated: bool
) -> tuple[list[str], str | None]:
    states = [client.state for client in group.clients]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    clients = "1 client" if len(states) == 1 else f"{len(states)} clients"
    lines = [f"device {device.index} {device.name}".rstrip() + f": {clients} ({counted})"]
    if group.reason:
        lines.append(f"  policy {device.policy}: {group.reason}")
    advice = None
    measured = group.share.get("10s")
    if measured is not None:
        lines.append(f"  used {format_share(measured)} over 10 s; it is due {format_share(group.target)} now")
        others = [
            f"{other.name} {format_share(other.share['10s'] or 0)}"
            for other in device.groups
            if other.name != group.name and (other.share.get("10s") or 0) > 0
        ]
        if others:
            lines.append(f"  the others: {', '.join(others)}")
        if _at_maximum(group):
            lines.append(f"  it is at its maximum of {format_share(group.max)}, which binds even on an idle device")
            more = format_share(min(1.0, group.max * 1.5))
            advice = on_group("set", group.name, "--max", more, simulated=simulated)
        elif measured < group.min - NOTICEABLE and "waits" in states:
            lines.append("  it is below its minimum and goes before the groups that are not")
    lines += _sharing(group, device)
    advice = _fraction(group, mps, lines, simulated=simulated) or advice
    advice = _memory(group, lines, simulated=simulated) or advice
    for client in group.clients:
        lines += _swap(client)
    return lines, advice


def _at_maximum(group: GroupStatus) -> bool:
    return group.max < 1 and (group.share.get("10s") or 0) > group.max - NOTICEABLE


def _swap(client: ClientStatus) -> list[str]:
    swap = client.swap
    if swap is None:
        return []
    who = f"  {client.called} ({client.pid})"
    text = f"{who}: {format_size(swap.resident)} of what can move is on the device, {format_size(swap.swapped)} is not"
    moved = f"; {format_size(swap.moved_out)} went to the host so far, {format_size(swap.moved_in)} came back"
    if swap.handover_s is not None:
        moved += f", the last time within {swap.handover_s:.2f} s"
    lines = [text + moved]
    if swap.pinned:
        lines.append(f"{who}: {format_size(swap.pinned)} of the host's memory are pinned for it")
    if swap.dropped:
        lines.append(f"{who}: {format_size(swap.dropped)} left without a copy: unchanged since the last one, or unused")
    if fixed := client.memory - swap.resident - swap.swapped:
        kinds = "managed memory, arrays, graphs' own, what is exported, pools that are shared"
        lines.append(f"{who}: {format_size(fixed)} stay on the device, as memory of these kinds cannot move: {kinds}")
    return lines + ([f"{who}: {swap.reason}"] if swap.reason else [])


# Why a group does not share the device with others (`Why` in native/arbiter/arbiter.hpp).
TURNS = {
    "always": "takes turns with others: its policy or its workload `alone` asks for that",
    "both busy": "takes turns: it and another program keep the device busy all the time; time slicing would cost both",
    "ahead": "takes turns: it, or such as had just come, was ahead of its share while another group was behind its own",
    "behind": "has turns of its own: beside others it fell behind its share",
    "slowed": "the others stop for its requests: beside them its requests took longer than its slowdown allows",
    "unverified": "takes turns until its speed alone is known",
}


def _sharing(group: GroupStatus, device: DeviceStatus) -> list[str]:
    present = [other for other in device.groups if other.name != group.name]
    others = [other for other in present if any(c.state == "runs" for c in other.clients)]
    restrained = [f"'{other.name}'" for other in present if other.why == "slowed"]
    in_turns = [
        f"'{other.name}'" for other in present
        if other.why in TURNS and other.why != "slowed" and any(c.state != "idle" for c in other.clients)
    ]  # fmt: skip
    lines = []
    if group.why in TURNS:
        lines.append(f"  {TURNS[group.why]}")
    elif in_turns:
        lines.append(f"  waits for the turns of {', '.join(in_turns)}, and runs freely beside all others")
    elif others and _at_maximum(group):
        lines.append("  up to that it runs beside others without turns: no promise is in danger")
    elif others and not restrained:
        lines.append("  runs freely beside others: no promise is in danger")
    if group.speed is not None and others:
        lines.append(f"  while it runs, it has {format_share(group.speed)} of its speed alone")
    if restrained and group.why != "slowed":
        lines.append(f"  stops for the requests of {', '.join(restrained)}")
    return lines


def _fraction(group: GroupStatus, mps: MpsStatus, lines: list[str], *, simulated: bool) -> str | None:
    if group.sm >= 1:
        return None
    fraction = f"  its {format_share(group.sm)} of the multiprocessors"
    outside = [str(client.pid) for client in group.clients if not client.mps]
    if not outside:
        lines.append(f"{fraction} are in force: its programs run beside others under MPS")
        return None
    lines.append(f"{fraction} are not in force for {', '.join(outside)}: not under MPS, so it takes turns")
    if mps.state == "on":
        lines.append("  MPS runs: a program that `gemlet run` starts from now on has its fraction")
        return None
    return f"{command('mps', 'start', simulated=simulated)}, then start its programs again"


def _memory(group: GroupStatus, lines: list[str], *, simulated: bool) -> str | None:
    if group.memory_limit is None:
        lines.append(f"  holds {format_size(group.memory_used)}, without a limit")
        return None
    lines.append(
        f"  holds {format_size(group.memory_used)} of {format_size(group.memory_limit)}"
        f", {format_size(group.unledgered)} of it in contexts and modules"
    )
    if group.memory_used < NEARLY_FULL * group.memory_limit:
        return None
    more = format_size(group.memory_limit * 3 // 2).replace(" ", "")
    return on_group("set", group.name, "--memory", more, simulated=simulated)


def _event(event: Event) -> str:
    who = f"{event.command} ({event.pid})" if event.command else f"pid {event.pid}"
    return f"  {event.kind}: {who}: {event.text}"
