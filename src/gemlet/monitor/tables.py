"""The status document as text: the same for `gemlet status`, `gemlet top --once` and a pipe. Plain strings, no colour.

Colour is never the only signal, so this text is complete; `top` adds colour to it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gemlet
from gemlet.config.group_fields import shown
from gemlet.config.quantities import format_share, format_size
from gemlet.daemon.processes import name_of as user_name
from gemlet.model import GROUP_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.mps_state import MpsStatus
    from gemlet.daemon.status import (
        ClientStatus,
        DeviceStatus,
        GroupLimits,
        GroupStatus,
        Status,
        SwapStatus,
        UnmanagedStatus,
    )
    from gemlet.model import TimeTerms

BAR_WIDTH = 20
WINDOW = "10s"
UNKNOWN = "-"
SENSORS = ("TEMPERATURE", "POWER", "CLOCK")
SHOWN = {"min", "max", "sm", "priority"}  # fields of a group that always have a column


def bar(share: float, *, promise: float | None = None, limit: float | None = None, width: int = BAR_WIDTH) -> str:
    """A bar for 0..1; ``|`` marks the promise and ``]`` the limit."""
    filled = round(max(0.0, min(1.0, share)) * width)
    cells = ["█"] * filled + ["·"] * (width - filled)
    for mark, place in (("|", promise), ("]", limit)):
        if place:
            cells[min(width - 1, max(0, round(place * width) - 1))] = mark
    return "".join(cells)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> list[str]:
    """Columns as wide as their widest cell; those named in ``right`` are flush right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def text(status: Status) -> str:
    """The whole document: devices, groups, clients; what is empty says so."""
    lines = [_headline(status), *_config_lines(status), *_mps_lines(status), ""]
    lines += _devices(status.devices) or ["(no devices: no driver answers, and no program has attached to one)"]
    if status.daemon is not None:
        lines += ["", *(_groups(status) or ["(no groups: `gemlet run -- COMMAND` makes one)"])]
    lines += ["", *(_programs(status) or ["(no program uses a device)"])]
    if unmanaged := _unmanaged_lines(status.unmanaged):
        lines += ["", *unmanaged]
    return "\n".join(lines) + "\n"


def _headline(status: Status) -> str:
    daemon = status.daemon
    if daemon is None:
        return f"gemlet {gemlet.__version__}  {status.problem}"
    parts = [f"gemlet {daemon.version}", f"daemon {daemon.pid} ({daemon.kind})", f"policy {daemon.policy}"]
    if status.simulated:
        parts.insert(1, "SIMULATED MACHINE, not a GPU")
    if daemon.config:
        parts.append(daemon.config)
    return "  ".join(parts)


def _config_lines(status: Status) -> list[str]:
    error = status.daemon.config_error if status.daemon else None
    return [f"configuration not applied, the last good one holds: {error}"] if error else []


def _devices(devices: Sequence[DeviceStatus]) -> list[str]:
    if not devices:
        return []
    capacities = any(device.capacity for device in devices)
    sensors = any(sensor_cells(device) != [UNKNOWN] * 3 for device in devices)
    rows = [
        [
            str(device.index),
            device.name or device.uuid,
            UNKNOWN if device.utilization is None else format_share(device.utilization),
            memory_text(device.memory_used, device.memory_total),
            share_text(device.share.get(WINDOW)),
            device.policy or UNKNOWN,
            *([format_size(device.capacity) if device.capacity else UNKNOWN] if capacities else []),
            *(sensor_cells(device) if sensors else []),
        ]
        for device in devices
    ]
    header = ["DEVICE", "NAME", "BUSY", "MEMORY", "GROUPS USE", "POLICY"]
    header += ["CAPACITY"] if capacities else []
    return table([*header, *SENSORS] if sensors else header, rows, right=frozenset(SENSORS))


def sensor_cells(device: DeviceStatus) -> list[str]:
    """Temperature, power and clock of the multiprocessors; a dash for what the driver does not tell."""
    return [
        UNKNOWN if device.temperature is None else f"{device.temperature:.0f} C",
        UNKNOWN if device.power is None else f"{device.power:.0f} W",
        UNKNOWN if device.clock is None else f"{device.clock} MHz",
    ]


def _groups(status: Status) -> list[str]:
    rows: list[tuple[TimeTerms, list[str]]] = []
    placed = set()
    for device in status.devices:
        for group in device.groups:
            if group.clients:
                rows.append((group, _group_row(str(device.index), group)))
                placed.add(group.name)
    rows += [(limits, _vacant_row(limits)) for limits in status.groups if limits.name not in placed]
    if not rows:
        return []
    # What is at its default for every group takes no room on the screen.
    others = [
        field
        for name, field in GROUP_FIELDS.items()
        if field.time and name not in SHOWN and any(getattr(terms, name) != field.default for terms, _ in rows)
    ]
    header = ["GROUP", "DEVICE", "SHARE", "PROMISED", "DUE", "SM", "MEMORY", "PRIORITY"]
    header += [*(field.name.upper() for field in others), "CLIENTS", "WHY"]
    cells = [
        [*row[:-2], *(shown(field, getattr(terms, field.name)) for field in others), *row[-2:]] for terms, row in rows
    ]
    return table(header, cells, right=frozenset({"SHARE", "DUE", "CLIENTS"}))


def _vacant_row(limits: GroupLimits) -> list[str]:
    promise = f"{format_share(limits.min)}..{format_share(limits.max)}"
    memory = memory_text(0, limits.memory)
    sm = format_share(limits.sm)
    return [limits.name, UNKNOWN, UNKNOWN, promise, UNKNOWN, sm, memory, limits.priority, "0", "no clients"]


def _group_row(device: str, group: GroupStatus) -> list[str]:
    return [
        group.name,
        device,
        share_text(group.share.get(WINDOW)),
        f"{format_share(group.min)}..{format_share(group.max)}",
        format_share(group.target),
        sm_text(group),
        memory_text(group.memory_used, group.memory_limit),
        group.priority,
        str(len(group.clients)),
        group.reason,
    ]


def _programs(status: Status) -> list[str]:
    clients = [
        (device, group, client) for device in status.devices for group in device.groups for client in group.clients
    ]
    # What nobody uses takes no room on the screen.
    swapping = any(client.swap for *_, client in clients)
    rows = [
        [
            str(client.pid),
            client.user or user_name(client.uid),
            program_text(client),
            group.name,
            str(device.index),
            client.state,
            format_size(client.memory_used),
            started_text(client.started),
            str(client.contexts),
            str(client.launches),
            *(swap_cells(client.swap) if swapping else []),
        ]
        for device, group, client in clients
    ]
    rows += [[*_outside_row(who), *[UNKNOWN] * (7 if swapping else 2)] for who in status.outside]
    if not rows:
        return []
    header = ["PID", "USER", "PROGRAM", "GROUP", "DEVICE", "STATE", "MEMORY", "STARTED", "CONTEXTS", "LAUNCHES"]
    moved = ["RESIDENT", "SWAPPED", "OUT", "IN", "HAND-OVER"]
    right = frozenset({"PID", "MEMORY", "STARTED", "CONTEXTS", "LAUNCHES", *moved})
    return table([*header, *moved] if swapping else header, rows, right=right)


def program_text(who: ClientStatus | Outsider | UnmanagedStatus) -> str:
    """What people call it, and in which container it is."""
    return f"{who.called or UNKNOWN} in {who.container}" if who.container else who.called or UNKNOWN


def started_text(started: float | None) -> str:
    """The time of day, or the date of what started more than a day ago."""
    if started is None:
        return UNKNOWN
    recent = time.time() - started < 24 * 3600
    return time.strftime("%H:%M:%S" if recent else "%Y-%m-%d", time.localtime(started))


def swap_cells(swap: SwapStatus | None) -> list[str]:
    """What is on the device and on the host, what moved, how long the last hand-over took; dashes if none can."""
    if swap is None:
        return [UNKNOWN] * 5
    sizes = [format_size(size) for size in (swap.resident, swap.swapped, swap.moved_out, swap.moved_in)]
    return [*sizes, UNKNOWN if swap.handover_s is None else f"{swap.handover_s:.2f} s"]


def _mps_lines(status: Status) -> list[str]:
    if status.mps.state == "off":
        return [f"MPS of others: pid {control.pid} in {control.pipe_directory}" for control in status.mps.foreign]
    return [_mps_line(status.mps, simulated=status.simulated)]


def _mps_line(mps: MpsStatus, *, simulated: bool) -> str:
    start = "gemlet mps start --simulate" if simulated else "gemlet mps start"
    clients = len(mps.clients())
    programs = "1 program" if clients == 1 else f"{clients} programs"
    return {
        "off": "MPS off",
        "on": f"MPS on: control daemon {mps.pid}, {programs}",
        "stopping": f"MPS stopping: control daemon {mps.pid} takes no new programs and goes with its last one",
        "failed": f"MPS failed: its control daemon ended unexpectedly; `{start}` starts it again",
    }[mps.state] + (f"; {mps.problem}" if mps.problem else "")


def mps_text(mps: MpsStatus, *, simulated: bool) -> str:
    """All of `gemlet mps status`."""
    lines = [("SIMULATED MACHINE  " if simulated else "") + _mps_line(mps, simulated=simulated)]
    if mps.pid is not None:
        lines += [f"pipes  {mps.pipe_directory}", f"log    {mps.log_directory}"]
    for control in mps.foreign:
        lines.append(f"not gemlet's: control daemon {control.pid} of uid {control.uid} in {control.pipe_directory}")
    rows = [
        [str(server.pid), server.status or UNKNOWN, str(client.pid), client.command or UNKNOWN, client.group or UNKNOWN]
        for server in mps.servers
        for client in server.clients
    ]
    if rows:
        header = ["SERVER", "STATUS", "PID", "COMMAND", "GROUP"]
        lines += ["", *table(header, rows, right=frozenset({"SERVER", "PID"}))]
    return "\n".join(lines) + "\n"


def outside_lines(outside: Sequence[Outsider]) -> list[str]:
    """Programs that use a device outside gemlet; nothing if there are none."""
    header = ["PID", "USER", "PROGRAM", "GROUP", "DEVICE", "STATE", "MEMORY", "STARTED"]
    rows = [_outside_row(who) for who in outside]
    return table(header, rows, right=frozenset({"PID", "MEMORY", "STARTED"})) if rows else []


def _outside_row(who: Outsider) -> list[str]:
    return [
        str(who.pid),
        who.user or user_name(who.uid),
        program_text(who),
        UNKNOWN,
        str(who.device),
        outside_state(who),
        memory_text(who.memory, None),
        started_text(who.started),
    ]


def outside_state(who: Outsider) -> str:
    """What a program outside gemlet does, or what was done to it."""
    return who.action or ("draws" if who.graphics else "outside")


def _unmanaged_lines(unmanaged: Sequence[UnmanagedStatus]) -> list[str]:
    rows = [
        [
            str(who.pid),
            who.user or user_name(who.uid),
            program_text(who),
            who.group or UNKNOWN,
            f"{who.seconds:.0f} s",
            who.state,
            who.why,
        ]
        for who in unmanaged
    ]
    header = ["UNMANAGED", "USER", "PROGRAM", "GROUP", "FOR", "STATE", "WHY"]
    return table(header, rows, right=frozenset({"UNMANAGED", "FOR"})) if rows else []


def sm_text(group: GroupStatus) -> str:
    """The fraction of the multiprocessors, and whether it is one in name only."""
    return format_share(group.sm) + ("" if group.sm_in_force else " (off)")


def share_text(share: float | None) -> str:
    """A share, or a dash before it is known."""
    return UNKNOWN if share is None else format_share(share)


def memory_text(used: int | None, total: int | None) -> str:
    """Used of total; a dash for what is not known, and only what is used where there is no limit."""
    if used is None:
        return UNKNOWN
    return format_size(used) if total is None else f"{format_size(used)} / {format_size(total)}"
