"""`gemlet top`: devices, groups, clients and the last events, live.

Colour repeats what the text says and never replaces it. Everything fits into 80 columns and 24 lines.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from gemlet.config.quantities import format_share, format_size
from gemlet.errors import GemletError
from gemlet.monitor.history import BLOCKS
from gemlet.monitor.tables import (
    UNKNOWN,
    WINDOW,
    bar,
    memory_text,
    outside_state,
    program_text,
    sensor_cells,
    share_text,
    sm_text,
    started_text,
    swap_cells,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.events import Key

    from gemlet.daemon.events import Event
    from gemlet.daemon.status import DeviceStatus, GroupStatus, Status

REFRESH_SECONDS = 0.5
HISTORY_COLUMNS = 60  # a refresh each
HEAVY, MODERATE = 0.8, 0.4  # nvidia-smi users know these as red, yellow, green
DEVICE_BAR, GROUP_BAR = 14, 12
SWAP_COLUMNS = ("RESIDENT", "SWAPPED", "OUT", "IN", "HAND-OVER")
CLIENT_COLUMNS = ("PID", "USER", "PROGRAM", "GROUP", "STATE", "MEMORY", "STARTED", "LAUNCHES")
GROUP_COLUMNS = ("GROUP", "DEV", "SHARE", "", "DUE", "SM", "MEMORY", "WHY")
EVENTS_SHOWN = 4
HAPPENED = {"join": "joined", "leave": "left", "context": ""}  # where the kind of an event does not read as a word

SORTS: dict[str, Callable[[tuple[DeviceStatus, GroupStatus]], object]] = {
    "share": lambda row: -(row[1].share.get(WINDOW) or 0.0),
    "memory": lambda row: -row[1].memory_used,
    "name": lambda row: row[1].name,
}
HELP = """\
DEVICE   utilisation and memory as the driver measures them
SHARE    device time used over 10 s;  | promised minimum, ] maximum
DUE      what the policy aims at now, given who wants the device
SM       fraction of the multiprocessors; (off): not under MPS, so it takes turns
WHY      the policy's own reason
PROGRAM  script, module, notebook or executable, and the container it is in
STATE    runs, waits, stops, idle; outside: not under gemlet, draws: graphics
RESIDENT of the memory that can move, on the device; SWAPPED on the host
OUT IN   copied to the host and back so far; the last hand-over

space    pause and go on
s        sort by share, memory, name
/        show only groups and programs with this in a cell
?        this help
q        quit
"""


class Help(ModalScreen[None]):
    """What the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "close")]
    CSS = "Help { align: center middle; } #help { width: 72; height: auto; border: round $primary; padding: 1 2; }"

    def compose(self) -> ComposeResult:
        yield Static(HELP, id="help", markup=False)


class Top(App[None]):
    """The application. ``read`` blocks and returns the daemon's status; it may raise GemletError."""

    TITLE = "gemlet top"
    CSS = """
    #head { height: 1; background: $boost; }
    #devices { height: auto; max-height: 9; }
    #filter { height: 1; border: none; }
    DataTable { height: auto; max-height: 10; margin-bottom: 1; overflow-x: hidden; }
    #events { height: auto; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, read: Callable[[], Status]) -> None:
        super().__init__()
        self._read = read
        self._status: Status | None = None
        self._paused = False
        self._sort = "share"
        self._busy: dict[str, deque[float]] = {}  # by UUID, of the last refreshes
        self._filter = Input(
            id="filter", placeholder="part of a group, program, user or pid; Enter keeps it, Esc ends it"
        )
        self._problem = ""
        self._read_at = 0.0
        # Kept rather than looked up: a look-up searches the screen on top, which may be the help.
        self._headline = Static(id="head", markup=False)
        self._device_lines = Static(id="devices", markup=False)
        self._groups: DataTable[Text | str] = DataTable(id="groups", cursor_type="none", zebra_stripes=True)
        self._clients: DataTable[Text | str] = DataTable(id="clients", cursor_type="none", zebra_stripes=True)
        self._event_lines = Static(id="events", markup=False)

    @property
    def status(self) -> Status | None:
        """What is shown; None until the daemon has answered."""
        return self._status

    def compose(self) -> ComposeResult:
        yield self._headline
        with VerticalScroll():
            yield self._device_lines
            yield self._groups
            yield self._clients
            yield self._event_lines
        yield self._filter
        yield Footer()

    async def on_mount(self) -> None:
        self._filter.display = False
        self._groups.add_columns(*GROUP_COLUMNS)
        self._clients.add_columns(*CLIENT_COLUMNS)
        await self.refresh_status()
        self.set_interval(REFRESH_SECONDS, self.refresh_status)

    async def refresh_status(self) -> None:
        """Asks the daemon, in a thread, and shows what it says."""
        if self._paused:
            return
        try:
            self._status = await asyncio.to_thread(self._read)
            self._problem = ""
            self._read_at = time.monotonic()
            for device in self._status.devices:
                busy = self._busy.setdefault(device.uuid, deque(maxlen=HISTORY_COLUMNS))
                busy.append(device.utilization or 0.0)
        except GemletError as error:
            self._problem = f"{error}; trying again"
        self.show()

    def show(self) -> None:
        """Draws the last status."""
        if not self._headline.is_attached:
            return  # the answer came when the application was already ending
        self._headline.update(self._head())
        if self._status is None:
            return
        self._device_lines.update(_devices(self._status, self._busy))
        self._show_groups(self._status)
        self._show_programs(self._status)
        self._event_lines.update(_events(self._status.events[-EVENTS_SHOWN:]))

    def action_pause(self) -> None:
        """Stops and resumes the refreshing."""
        self._paused = not self._paused
        self.show()

    def action_sort(self) -> None:
        """Sorts by the next column."""
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self.show()

    def action_filter(self) -> None:
        """Asks what groups and programs must have in their cells."""
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self) -> None:
        """Filters while it is typed."""
        self.show()

    def on_input_submitted(self) -> None:
        """Keeps the filter; the keys mean commands again."""
        self._filter.display = bool(self._filter.value)
        self.set_focus(None)

    def on_key(self, event: Key) -> None:
        """Ends the filter."""
        if event.key == "escape" and self._filter.display:
            self._filter.value = ""
            self._filter.display = False
            self.set_focus(None)

    def _passes(self, *cells: object) -> bool:
        wanted = self._filter.value.casefold()
        return any(wanted in str(cell).casefold() for cell in cells)

    def action_help(self) -> None:
        """Explains the columns."""
        self.push_screen(Help())

    def _head(self) -> Text:
        parts = ["gemlet top"]
        if self._status and self._status.simulated:
            parts.append("SIMULATED MACHINE")
        if self._status:
            daemon = self._status.daemon
            parts.append(f"policy {daemon.policy}" if daemon else self._status.problem or "")
            parts += [f"MPS {self._status.mps.state}"] if self._status.mps.state != "off" else []
        parts.append(f"by {self._sort}")
        if self._paused:
            parts.append(f"paused {time.monotonic() - self._read_at:.0f} s ago")
        text = Text("  ".join(parts), style="bold")
        if self._problem:
            text.append(f"  {self._problem}", style="bold red")
        return text

    def _show_groups(self, status: Status) -> None:
        table = self._groups
        rows = [
            (device, group)
            for device in status.devices
            for group in device.groups
            if self._passes(group.name, *((c.pid, c.user, program_text(c)) for c in group.clients))
        ]
        rows.sort(key=lambda row: row[1].name)
        rows.sort(key=SORTS[self._sort])  # type: ignore[arg-type]  # every key of one sort is of one type
        table.clear()
        cells = [_group_cells(device, group) for device, group in rows]
        columns = zip(GROUP_COLUMNS[:-1], *(row[:-1] for row in cells), strict=True)
        left = sum(max(map(len, column)) + 2 for column in columns) + 1
        for *others, reason in cells:
            reason.truncate(max(10, self.size.width - left), overflow="ellipsis")
            table.add_row(*others, reason)
        if not rows:
            table.add_row("(no groups in use)" if status.daemon else "gemlet run --min 30% -- COMMAND makes one")

    def _show_programs(self, status: Status) -> None:
        table = self._clients
        swapping = any(client.swap for device in status.devices for group in device.groups for client in group.clients)
        columns = CLIENT_COLUMNS + SWAP_COLUMNS if swapping else CLIENT_COLUMNS
        table.clear(columns=len(columns) != len(table.columns))
        if not table.columns:
            table.add_columns(*columns)
        for device in status.devices:
            for group in device.groups:
                for client in group.clients:
                    if not self._passes(client.pid, client.user, program_text(client), group.name):
                        continue
                    table.add_row(
                        str(client.pid),
                        client.user or UNKNOWN,
                        program_text(client),
                        group.name,
                        client.state,
                        Text(format_size(client.memory_used), justify="right"),
                        Text(started_text(client.started), justify="right"),
                        Text(str(client.launches), justify="right"),
                        *(Text(cell, justify="right") for cell in swap_cells(client.swap) if swapping),
                    )
        for loose in status.unmanaged:
            if not self._passes(loose.pid, loose.user, program_text(loose), loose.group):
                continue
            cells = [str(loose.pid), loose.user or UNKNOWN, program_text(loose), loose.group or UNKNOWN, loose.state]
            table.add_row(*cells, *[UNKNOWN] * (len(columns) - len(cells)))
        for who in status.outside:
            if not self._passes(who.pid, who.user, program_text(who)):
                continue
            table.add_row(
                str(who.pid),
                who.user or UNKNOWN,
                program_text(who),
                UNKNOWN,
                outside_state(who),
                Text(memory_text(who.memory, None), justify="right"),
                Text(started_text(who.started), justify="right"),
                *[Text(UNKNOWN, justify="right")] * (len(columns) - 7),
            )
        if not table.row_count:
            table.add_row("(no programs)")


async def screenshot(read: Callable[[], Status], *, size: tuple[int, int] = (100, 22), seconds: float = 1.2) -> str:
    """The screen as SVG, after watching for ``seconds``."""
    app = Top(read)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        simulated = app.status is not None and app.status.simulated
        return app.export_screenshot(title="gemlet top" + (" (simulated machine, not a GPU)" if simulated else ""))


def _devices(status: Status, history: Mapping[str, Sequence[float]]) -> Text:
    text = Text()
    for device in status.devices:
        busy = device.utilization
        used, total = device.memory_used, device.memory_total
        part = used / total if used is not None and total else None
        text.append(f"{device.index} {device.name or device.uuid}", style="bold")
        text.append("".join(f"  {cell}" for cell in sensor_cells(device) if cell != UNKNOWN) + "\n")
        text.append("  busy ")
        text.append(bar(busy or 0.0, width=DEVICE_BAR), style=_level(busy))
        text.append(f" {share_text(busy):>6}  memory ")
        text.append(bar(part or 0.0, width=DEVICE_BAR), style=_level(part))
        text.append(f" {memory_text(used, total)}\n")
        line = "".join(BLOCKS[round(min(1.0, part) * 8)] for part in history.get(device.uuid, ()))
        text.append(f"  last {HISTORY_COLUMNS * REFRESH_SECONDS:.0f} s ")
        text.append(f"{line:>{HISTORY_COLUMNS}}\n", style="dim")
    if not status.devices:
        text.append("(no devices)\n")
    return text


def _level(part: float | None) -> str:
    if part is None:
        return "dim"
    return "red" if part >= HEAVY else "yellow" if part >= MODERATE else "green"


def _group_cells(device: DeviceStatus, group: GroupStatus) -> list[Text]:
    share = group.share.get(WINDOW)
    return [
        Text(group.name),
        Text(str(device.index)),
        Text(share_text(share), justify="right"),
        Text(bar(share or 0.0, promise=group.min, limit=group.max, width=GROUP_BAR), style="green"),
        Text(format_share(group.target), justify="right"),
        Text(sm_text(group), justify="right"),
        Text(memory_text(group.memory_used, group.memory_limit)),
        Text(group.reason),
    ]


def _happened(event: Event) -> str:
    word = HAPPENED.get(event.kind, event.kind)
    return word if event.text == word else f"{word} {event.text}".strip()  # a client that leaves has the text "left"


def _events(events: Sequence[Event]) -> str:
    if not events:
        return "(no events)"
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(event.time)),
            event.group,
            f"{event.command} ({event.pid})" if event.command else "",
            _happened(event),
        )
        for event in events
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
