"""The columns of `gemlet status`, `gemlet top` and `gemlet audit`: what each means, and its cells.

A column of one name is made here and nowhere else, so it shows the same everywhere; docs/commands.md has the same list.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share, format_size
from gemlet.daemon.processes import name_of as user_name

if TYPE_CHECKING:
    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.status import ClientStatus, DeviceStatus, GroupLimits, GroupStatus, SwapStatus, UnmanagedStatus

UNKNOWN = "-"
WINDOW = "10s"
SENSORS = ("TEMPERATURE", "POWER", "CLOCK")
MOVED = ("RESIDENT", "SWAPPED", "OUT", "IN", "HAND-OVER")


@dataclass(frozen=True, slots=True)
class Column:
    """``meaning``: for people, in one line. ``fields``: the paths in the status document that are behind it."""

    meaning: str
    fields: tuple[str, ...]
    right: bool = False


GROUP, CLIENT = "devices.groups", "devices.groups.clients"
COLUMNS = {
    "DEVICE": Column("index of the device", ("devices.index", "outside.device")),
    "NAME": Column("what the driver calls the device", ("devices.name",)),
    "BUSY": Column("part of the last second or less in which a kernel of anybody ran", ("devices.utilization",)),
    "GROUPS USE": Column("device time used over 10 s, by all groups", ("devices.share",)),
    "POLICY": Column("of the device's arbiter", ("devices.policy",)),
    "CAPACITY": Column("of the device's memory, for what can move", ("devices.capacity",)),
    "TEMPERATURE": Column("as the driver measures it", ("devices.temperature",), right=True),
    "POWER": Column("as the driver measures it", ("devices.power",), right=True),
    "CLOCK": Column("of the multiprocessors now", ("devices.clock",), right=True),
    "GROUP": Column("name of the group", (f"{GROUP}.name", "unmanaged.group")),
    "SHARE": Column("device time used over 10 s, by the group", (f"{GROUP}.share",), right=True),
    "PROMISED": Column("minimum and maximum; in a bar | and ]", (f"{GROUP}.min", f"{GROUP}.max")),
    "DUE": Column("what the policy aims at now, given who wants the device", (f"{GROUP}.target",), right=True),
    "SM": Column(
        "fraction of the multiprocessors; (off): not under MPS, so it takes turns",
        (f"{GROUP}.sm", f"{GROUP}.sm_in_force"),
    ),
    "MEMORY": Column(
        "what counts against a limit, contexts included, and the limit; of a device what anybody uses, and what it has",
        (
            "devices.memory_used",
            "devices.memory_total",
            f"{GROUP}.memory_used",
            f"{GROUP}.memory_limit",
            f"{CLIENT}.memory_used",
            "outside.memory",
        ),
        right=True,
    ),
    "PRIORITY": Column("class of the group", (f"{GROUP}.priority",)),
    "P50": Column("half of its requests of the last minute took no longer", (f"{GROUP}.latency.p50_s",), right=True),
    "P99": Column("... and 99 of 100", (f"{GROUP}.latency.p99_s",), right=True),
    "CLIENTS": Column("how many programs of the group use the device", (f"{GROUP}.clients",), right=True),
    "WHY": Column("the policy's own reason", (f"{GROUP}.reason", "unmanaged.why")),
    "PID": Column("of the program", (f"{CLIENT}.pid", "outside.pid"), right=True),
    "UNMANAGED": Column("pid of a program that came to the daemon and is not governed", ("unmanaged.pid",), right=True),
    "FOR": Column("how long it has not been governed", ("unmanaged.seconds",), right=True),
    "USER": Column("owner of the program", (f"{CLIENT}.user", "outside.user", "unmanaged.user")),
    "PROGRAM": Column(
        "script, module, notebook or executable, and the container it is in",
        (f"{CLIENT}.name", f"{CLIENT}.container", "outside.name", "outside.container", "unmanaged.name"),
    ),
    "STATE": Column(
        "runs, waits, stops, idle; outside: not under gemlet, draws: graphics only",
        (f"{CLIENT}.state", "outside.action", "outside.graphics", "unmanaged.state"),
    ),
    "STARTED": Column("when the program started", (f"{CLIENT}.started", "outside.started"), right=True),
    "CONTEXTS": Column("of the program on the device", (f"{CLIENT}.contexts",), right=True),
    "LAUNCHES": Column(
        "pieces of work submitted; of a group those of programs that have gone, too",
        (f"{CLIENT}.launches", f"{GROUP}.launches"),
        right=True,
    ),
    "RESIDENT": Column("of the memory that can move, on the device", (f"{CLIENT}.swap.resident",), right=True),
    "SWAPPED": Column("of the memory that can move, on the host", (f"{CLIENT}.swap.swapped",), right=True),
    "OUT": Column("copied to the host so far", (f"{CLIENT}.swap.moved_out",), right=True),
    "IN": Column("copied to the device so far", (f"{CLIENT}.swap.moved_in",), right=True),
    "HAND-OVER": Column("how long it took to come in last time", (f"{CLIENT}.swap.handover_s",), right=True),
}
RIGHT = frozenset(name for name, column in COLUMNS.items() if column.right)

Cells = dict[str, str]  # by column


def device_cells(device: DeviceStatus) -> Cells:
    """One device."""
    return {
        "DEVICE": str(device.index),
        "NAME": device.name or device.uuid,
        "BUSY": share_text(device.utilization),
        "MEMORY": memory_text(device.memory_used, device.memory_total),
        "GROUPS USE": share_text(device.share.get(WINDOW)),
        "POLICY": device.policy or UNKNOWN,
        "CAPACITY": format_size(device.capacity) if device.capacity is not None else UNKNOWN,
        "TEMPERATURE": UNKNOWN if device.temperature is None else f"{device.temperature:.0f} C",
        "POWER": UNKNOWN if device.power is None else f"{device.power:.0f} W",
        "CLOCK": UNKNOWN if device.clock is None else f"{device.clock} MHz",
    }


def group_cells(device: DeviceStatus, group: GroupStatus) -> Cells:
    """One group on one device."""
    return {
        "GROUP": group.name,
        "DEVICE": str(device.index),
        "SHARE": share_text(group.share.get(WINDOW)),
        "PROMISED": promise_text(group),
        "DUE": format_share(group.target),
        "SM": format_share(group.sm) + ("" if group.sm_in_force else " (off)"),
        "MEMORY": memory_text(group.memory_used, group.memory_limit),
        "PRIORITY": group.priority,
        "CLIENTS": str(len(group.clients)),
        "WHY": group.reason,
        "LAUNCHES": str(group.launches),
        "P50": duration_text(group.latency.p50_s) if group.latency else UNKNOWN,
        "P99": duration_text(group.latency.p99_s) if group.latency else UNKNOWN,
    }


def vacant_cells(limits: GroupLimits) -> Cells:
    """A group of which no program uses a device."""
    return {
        "GROUP": limits.name,
        "DEVICE": UNKNOWN,
        "SHARE": UNKNOWN,
        "PROMISED": promise_text(limits),
        "DUE": UNKNOWN,
        "SM": format_share(limits.sm),
        "MEMORY": memory_text(0, limits.memory),
        "PRIORITY": limits.priority,
        "CLIENTS": "0",
        "WHY": "no clients",
    }


def client_cells(device: DeviceStatus, group: GroupStatus, client: ClientStatus) -> Cells:
    """One program on one device."""
    return {
        **_who(client),
        "GROUP": group.name,
        "DEVICE": str(device.index),
        "STATE": client.state,
        "MEMORY": format_size(client.memory_used),
        "CONTEXTS": str(client.contexts),
        "LAUNCHES": str(client.launches),
        **_moved(client.swap),
    }


def outside_cells(who: Outsider) -> Cells:
    """One program outside gemlet."""
    return {
        **_who(who),
        "DEVICE": str(who.device),
        "STATE": who.action or ("draws" if who.graphics else "outside"),
        "MEMORY": memory_text(who.memory, None),
    }


def unmanaged_cells(who: UnmanagedStatus) -> Cells:
    """One program that has come to the daemon and is not governed."""
    return {
        **_who(who),
        "UNMANAGED": str(who.pid),
        "GROUP": who.group or UNKNOWN,
        "FOR": f"{who.seconds:.0f} s",
        "STATE": who.state,
        "WHY": who.why,
    }


def _who(who: ClientStatus | Outsider | UnmanagedStatus) -> Cells:
    return {
        "PID": str(who.pid),
        "USER": who.user or user_name(who.uid),
        "PROGRAM": f"{who.called or UNKNOWN} in {who.container}" if who.container else who.called or UNKNOWN,
        "STARTED": _started_text(who.started),
    }


def _moved(swap: SwapStatus | None) -> Cells:
    if swap is None:
        return {}
    sizes = [format_size(size) for size in (swap.resident, swap.swapped, swap.moved_out, swap.moved_in)]
    return dict(zip(MOVED, [*sizes, UNKNOWN if swap.handover_s is None else f"{swap.handover_s:.2f} s"], strict=True))


def _started_text(started: float | None) -> str:
    """The time of day, or the date of what started more than a day ago."""
    if started is None:
        return UNKNOWN
    recent = time.time() - started < 24 * 3600
    return time.strftime("%H:%M:%S" if recent else "%Y-%m-%d", time.localtime(started))


def promise_text(group: GroupStatus | GroupLimits) -> str:
    """Minimum and maximum."""
    return f"{format_share(group.min)}..{format_share(group.max)}"


def duration_text(seconds: float | None) -> str:
    """A time in ms below a second, in three digits."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def share_text(share: float | None) -> str:
    """A share, or a dash before it is known."""
    return UNKNOWN if share is None else format_share(share)


def memory_text(used: int | None, total: int | None) -> str:
    """Used of total; a dash for what is not known, and only what is used where there is no limit."""
    if used is None:
        return UNKNOWN
    return format_size(used) if total is None else f"{format_size(used)} / {format_size(total)}"
