"""`gemlet top`: devices, groups, clients and the last events, live.

Colour repeats what the text says and never replaces it. Everything fits into 80 columns and 24 lines.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from gemlet.errors import GemletError
from gemlet.monitor import ending, tree
from gemlet.monitor.columns import COLUMNS, MOVED, RIGHT, SENSORS, UNKNOWN, WINDOW, device_cells, group_cells
from gemlet.monitor.history import BLOCKS
from gemlet.monitor.tables import bar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.events import Key

    from gemlet.daemon.events import Event
    from gemlet.daemon.status import DeviceStatus, GroupStatus, Status
    from gemlet.monitor.tree import Row

REFRESH_SECONDS = 0.5
HISTORY_COLUMNS = 60  # a refresh each
HEAVY, MODERATE = 0.8, 0.4  # nvidia-smi users know these as red, yellow, green
DEVICE_BAR, GROUP_BAR = 14, 12
GROUP_COLUMNS = ("GROUP", "DEVICE", "SHARE", "PROMISED", "DUE", "SM", "MEMORY", "WHY")
EVENTS_SHOWN = 4
HAPPENED = {"join": "joined", "leave": "left", "context": ""}  # where the kind of an event does not read as a word

SORTS: dict[str, Callable[[GroupStatus], object]] = {
    "share": lambda group: (-(group.share.get(WINDOW) or 0.0), group.name),
    "memory": lambda group: (-group.memory_used, group.name),
    "name": lambda group: group.name,
}
EXPLAINED = ("BUSY", *(name for name in GROUP_COLUMNS if name != "GROUP"), "STATE", *MOVED)
KEYS = """\
space    pause and go on
s        sort by share, memory, name
/        show only groups and programs with this in a cell
up down  choose a group or program;  Enter folds the group
f        fold all groups, or none
k        end the chosen program, or all of the group; asks first
?        this help
q        quit, as Ctrl-C does
"""
QUESTION = "t: ask to end (SIGTERM)   K: end at once (SIGKILL)   Esc: leave"


class Help(ModalScreen[None]):
    """What the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "close")]
    CSS = """
    Help { align: center middle; }
    #help { width: 78; height: auto; max-height: 100%; border: round $primary; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        meanings = "".join(f"{name:<9} {COLUMNS[name].meaning}\n" for name in EXPLAINED)
        with VerticalScroll(id="help"):
            yield Static(f"{KEYS}\n{meanings}", markup=False)


class End(ModalScreen[None]):
    """Asks whether to end programs, and ends them; or says why it cannot."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "dismiss", "leave"),
        Binding("t", "end('SIGTERM')", "SIGTERM"),
        Binding("K", "end('SIGKILL')", "SIGKILL"),
    ]
    CSS = "End { align: center middle; } #end { width: 74; height: auto; border: round $error; padding: 0 1; }"

    def __init__(self, row: Row) -> None:
        super().__init__()
        self._programs = {who.pid: who for who in row.programs}.values()  # one of several devices is listed for each
        self._text = Static(id="end", markup=False)

    def compose(self) -> ComposeResult:
        yield self._text

    def on_mount(self) -> None:
        names = ", ".join(f"{who.called} ({who.pid})" for who in self._programs)
        if problems := self._each(None):
            self._text.update("\n".join([f"Not ended: {names}", *problems, "", "Esc: close"]))
            self._programs = {}.values()
        else:
            self._text.update(f"End {names}?\n\n{QUESTION}")

    def action_end(self, name: str) -> None:
        """Sends the signal to each program."""
        if not self._programs:
            return
        if problems := self._each(signal.Signals[name]):
            self._text.update("\n".join([*problems, "", "Esc: close"]))
        else:
            self.dismiss()

    def _each(self, number: signal.Signals | None) -> list[str]:
        problems = []
        for who in self._programs:
            try:
                ending.send(who, number)
            except ending.NotEnded as error:
                problems.append(f"{error}.")
        return problems


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
        Binding("f", "fold_all", "fold"),
        Binding("k", "end", "end"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        # As in every other command; by itself Textual only tells of another key.
        Binding("ctrl+c", "quit", show=False, priority=True),
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
        self._programs: DataTable[Text | str] = DataTable(id="programs", cursor_type="row")
        self._rows: list[Row] = []  # those of the programs' table
        self._folded: set[str] = set()
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
            yield self._programs
            yield self._event_lines
        yield self._filter
        yield Footer()

    async def on_mount(self) -> None:
        self._filter.display = False
        self._groups.add_columns(*GROUP_COLUMNS)
        self._programs.focus()
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
        self._programs.focus()

    def on_key(self, event: Key) -> None:
        """Ends the filter."""
        if event.key == "escape" and self._filter.display:
            self._filter.value = ""
            self._filter.display = False
            self._programs.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Folds the group of the row, or unfolds it."""
        key = next((row.key for row in reversed(self._rows[: event.cursor_row + 1]) if row.is_group), None)
        if key is not None:
            self._folded ^= {key}
            self.show()

    def action_fold_all(self) -> None:
        """Folds all groups; unfolds them if all are."""
        groups = {row.key for row in self._rows if row.is_group}
        self._folded = set() if groups <= self._folded else self._folded | groups
        self.show()

    def action_end(self) -> None:
        """Asks whether to end the program under the cursor, or those of the group."""
        if self._programs.cursor_row < len(self._rows):
            self.push_screen(End(self._rows[self._programs.cursor_row]))

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
            if self._passes(group.name, *((c.pid, c.user, c.called, c.container) for c in group.clients))
        ]
        rows.sort(key=lambda row: SORTS[self._sort](row[1]))  # type: ignore[arg-type,return-value]  # of one type a sort
        table.clear()
        cells = [_group_row(device, group) for device, group in rows]
        columns = zip(GROUP_COLUMNS[:-1], *(row[:-1] for row in cells), strict=True)
        left = sum(max(map(len, column)) + 2 for column in columns) + 1
        for *others, reason in cells:
            reason.truncate(max(10, self.size.width - left), overflow="ellipsis")
            table.add_row(*others, reason)
        if not rows:
            table.add_row("(no groups in use)" if status.daemon else "gemlet run --min 30% -- COMMAND makes one")

    def _show_programs(self, status: Status) -> None:
        table = self._programs
        chosen = self._rows[table.cursor_row].key if table.cursor_row < len(self._rows) else None
        columns = tree.columns(status)
        table.clear(columns=len(columns) != len(table.columns))
        if not table.columns:
            table.add_columns(*columns)
        self._rows = tree.rows(status, folded=self._folded, passes=self._passes, order=SORTS[self._sort])
        for row in self._rows:
            empty = "" if row.is_group else UNKNOWN
            style = "bold" if row.is_group else ""
            table.add_row(*(_cell(name, row.cells.get(name, empty), style) for name in columns))
        if not self._rows:
            table.add_row("(no programs)")
        place = next((place for place, row in enumerate(self._rows) if row.key == chosen), None)
        if place is not None:
            table.move_cursor(row=place, animate=False)


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
        cells = device_cells(device)
        text.append(f"{cells['DEVICE']} {cells['NAME']}", style="bold")
        text.append("".join(f"  {cells[name]}" for name in SENSORS if cells[name] != UNKNOWN) + "\n")
        text.append("  busy ")
        text.append(bar(busy or 0.0, width=DEVICE_BAR), style=_level(busy))
        text.append(f" {cells['BUSY']:>6}  memory ")
        text.append(bar(part or 0.0, width=DEVICE_BAR), style=_level(part))
        text.append(f" {cells['MEMORY']}\n")
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


def _group_row(device: DeviceStatus, group: GroupStatus) -> list[Text]:
    cells = group_cells(device, group)
    drawn = bar(group.share.get(WINDOW) or 0.0, promise=group.min, limit=group.max, width=GROUP_BAR)
    return [Text(drawn, style="green") if name == "PROMISED" else _cell(name, cells[name]) for name in GROUP_COLUMNS]


def _cell(column: str, text: str, style: str = "") -> Text:
    return Text(text, style=style, justify="right" if column in RIGHT else "left")


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
