"""Groups with their programs, as rows of a tree that can be folded. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.monitor.columns import MOVED, client_cells, group_cells, outside_cells, unmanaged_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.status import ClientStatus, GroupStatus, Status, UnmanagedStatus
    from gemlet.monitor.columns import Cells

COLUMNS = ("PROGRAM", "PID", "USER", "DEVICE", "STATE", "MEMORY", "STARTED", "LAUNCHES")
OPEN, FOLDED, INDENT = "▾ ", "▸ ", "  "
OUTSIDE, UNMANAGED = "(outside gemlet)", "(without limits)"  # no group has such a name
OF_A_GROUP = ("DEVICE", "MEMORY", "LAUNCHES")


@dataclass(frozen=True, slots=True)
class Row:
    """A group, or one of its programs. ``key`` names it in every status; ``programs``: it, or all of the group."""

    key: str
    cells: Cells
    programs: tuple[ClientStatus | Outsider | UnmanagedStatus, ...]
    is_group: bool


def columns(status: Status) -> tuple[str, ...]:
    """Those of memory that moves only while any can."""
    swapping = any(client.swap for device in status.devices for group in device.groups for client in group.clients)
    return COLUMNS + MOVED if swapping else COLUMNS


def rows(
    status: Status,
    *,
    folded: Collection[str] = (),
    passes: Callable[..., bool] = lambda *_: True,
    order: Callable[[GroupStatus], object] = lambda group: group.name,
) -> list[Row]:
    """Groups in ``order``, each before its programs unless ``folded``; ``passes`` filters by cells of a program."""
    found = []
    for key, group, programs in _groups(status, order):
        shown = [
            (who, cells)
            for who, cells in programs
            if passes(cells["PID"], cells["USER"], cells["PROGRAM"], group["PROGRAM"])
        ]
        if not shown:
            continue
        mark = FOLDED if key in folded else OPEN
        title = {**group, "PROGRAM": f"{mark}{group['PROGRAM']} ({len(shown)})"}
        found.append(Row(key, title, tuple(who for who, _ in shown), is_group=True))
        if key not in folded:
            found += [
                Row(f"{key} {who.pid}", {**cells, "PROGRAM": INDENT + cells["PROGRAM"]}, (who,), is_group=False)
                for who, cells in shown
            ]
    return found


def _groups(
    status: Status, order: Callable[[GroupStatus], object]
) -> Iterator[tuple[str, Cells, list[tuple[ClientStatus | Outsider | UnmanagedStatus, Cells]]]]:
    for device in status.devices:
        for group in sorted(device.groups, key=order):  # type: ignore[arg-type]  # of one type a sort
            title = {name: text for name, text in group_cells(device, group).items() if name in OF_A_GROUP}
            title["PROGRAM"] = group.name
            clients = [(client, client_cells(device, group, client)) for client in group.clients]
            yield f"{device.uuid} {group.name}", title, [*clients]
    yield UNMANAGED, {"PROGRAM": UNMANAGED}, [(who, unmanaged_cells(who)) for who in status.unmanaged]
    yield OUTSIDE, {"PROGRAM": OUTSIDE}, [(who, outside_cells(who)) for who in status.outside]
