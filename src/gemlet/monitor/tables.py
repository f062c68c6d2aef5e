"""The status document as text: the same for `gemlet status`, `gemlet top --once` and a pipe. Plain strings, no colour.

Colour is never the only signal, so this text is complete; `top` adds colour to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gemlet
from gemlet.config.group_fields import shown
from gemlet.model import GROUP_FIELDS
from gemlet.monitor.columns import (
    MOVED,
    RIGHT,
    SENSORS,
    UNKNOWN,
    client_cells,
    device_cells,
    group_cells,
    outside_cells,
    unmanaged_cells,
    vacant_cells,
)
from gemlet.typed_command import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.mps_state import MpsStatus
    from gemlet.daemon.status import DeviceStatus, Status, UnmanagedStatus
    from gemlet.model import TimeTerms
    from gemlet.monitor.columns import Cells

BAR_WIDTH = 20
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
    lines = [_headline(status), *_error_lines(status), *_mps_lines(status), ""]
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


def _error_lines(status: Status) -> list[str]:
    if status.daemon is None:
        return []
    errors = {
        "configuration not applied, the last good one holds": status.daemon.config_error,
        "a daemon started after a kill would not know these groups": status.daemon.state_error,
    }
    return [f"{what}: {error}" for what, error in errors.items() if error]


def rows_of(cells: Sequence[Cells], columns: Sequence[str]) -> list[str]:
    """``columns`` of ``cells``, a dash where a row has nothing; no lines if there are no rows."""
    rows = [[row.get(name, UNKNOWN) for name in columns] for row in cells]
    return table(columns, rows, right=RIGHT) if rows else []


def _devices(devices: Sequence[DeviceStatus]) -> list[str]:
    cells = [device_cells(device) for device in devices]
    columns = ["DEVICE", "NAME", "BUSY", "MEMORY", "GROUPS USE", "POLICY"]
    columns += ["CAPACITY"] if any(device.capacity is not None for device in devices) else []
    columns += SENSORS if any(row[name] != UNKNOWN for row in cells for name in SENSORS) else ()
    return rows_of(cells, columns)


def _groups(status: Status) -> list[str]:
    rows: list[tuple[TimeTerms, Cells]] = []
    placed = set()
    for device in status.devices:
        for group in device.groups:
            if group.clients or group.memory_used:  # of programs that are not connected
                rows.append((group, group_cells(device, group)))
                placed.add(group.name)
    rows += [(limits, vacant_cells(limits)) for limits in status.groups if limits.name not in placed]
    # What is at its default for every group takes no room on the screen.
    others = [
        field
        for name, field in GROUP_FIELDS.items()
        if field.time and name not in SHOWN and any(getattr(terms, name) != field.default for terms, _ in rows)
    ]
    for terms, row in rows:
        row.update({field.name.upper(): shown(field, getattr(terms, field.name)) for field in others})
    columns = ["GROUP", "DEVICE", "SHARE", "PROMISED", "DUE", "SM", "MEMORY", "PRIORITY"]
    columns += [field.name.upper() for field in others]
    columns += [name for name in ("P50", "P99") if any(row.get(name, UNKNOWN) != UNKNOWN for _, row in rows)]
    columns += ["CLIENTS", "WHY"]
    return rows_of([row for _, row in rows], columns)


def _programs(status: Status) -> list[str]:
    clients = [
        (device, group, client) for device in status.devices for group in device.groups for client in group.clients
    ]
    cells = [client_cells(*where) for where in clients] + [outside_cells(who) for who in status.outside]
    columns = ["PID", "USER", "PROGRAM", "GROUP", "DEVICE", "STATE", "MEMORY", "STARTED", "CONTEXTS", "LAUNCHES"]
    # What nobody uses takes no room on the screen.
    columns += MOVED if any(client.swap for *_, client in clients) else ()
    return rows_of(cells, columns)


def _mps_lines(status: Status) -> list[str]:
    if status.mps.state == "off":
        return [f"MPS of others: pid {control.pid} in {control.pipe_directory}" for control in status.mps.foreign]
    return [_mps_line(status.mps, simulated=status.simulated)]


def _mps_line(mps: MpsStatus, *, simulated: bool) -> str:
    start = command("mps", "start", simulated=simulated)
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
    columns = ["PID", "USER", "PROGRAM", "DEVICE", "STATE", "MEMORY", "STARTED"]
    return rows_of([outside_cells(who) for who in outside], columns)


def _unmanaged_lines(unmanaged: Sequence[UnmanagedStatus]) -> list[str]:
    columns = ["UNMANAGED", "USER", "PROGRAM", "GROUP", "FOR", "STATE", "WHY"]
    return rows_of([unmanaged_cells(who) for who in unmanaged], columns)
