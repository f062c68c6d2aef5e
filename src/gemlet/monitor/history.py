"""The recorded history as text: a table, CSV, or a plot of blocks. Plain strings, no colour."""

from __future__ import annotations

import csv
import io
import time
from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share, format_size
from gemlet.monitor.columns import UNKNOWN, duration_text
from gemlet.monitor.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.daemon.history_recorder import Recorded, RecordedSeries

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 8  # of a plot

# Header, column, and how its values are shown. What nobody has takes no room on the screen.
OF_A_GROUP: dict[str, tuple[str, Callable[[float], str]]] = {
    "SHARE": ("share", format_share),
    "DUE": ("target", format_share),
    "SPEED": ("speed", format_share),
    "CLIENTS": ("clients", lambda number: f"{number:.3g}"),
    "MEMORY": ("memory", lambda size: format_size(round(size))),
    "RESIDENT": ("resident", lambda size: format_size(round(size))),
    "SWAPPED": ("swapped", lambda size: format_size(round(size))),
    "MOVED": ("moved", lambda size: f"{format_size(round(size))}/s"),
    "THROTTLED": ("throttled", format_share),
    "REQUESTS": ("requests", lambda rate: f"{rate:.3g}/s"),
    "P50": ("p50", duration_text),
    "P99": ("p99", duration_text),
}
OF_A_DEVICE: dict[str, tuple[str, Callable[[float], str]]] = {
    "BUSY": ("busy", format_share),
    "GROUPS USE": ("share", format_share),
    "MEMORY": ("memory", lambda size: format_size(round(size))),
    "POWER": ("power", lambda watts: f"{watts:.0f} W"),
    "TEMPERATURE": ("temperature", lambda degrees: f"{degrees:.0f} C"),
}
ALWAYS = {"SHARE", "DUE", "BUSY", "GROUPS USE", "MEMORY"}


def text(recorded: Recorded) -> str:
    """A table for each device; intervals of which nothing is recorded are left out."""
    return "\n".join(_heading(recorded, series) + _table(recorded, series) for series in recorded.series)


def rows(recorded: Recorded) -> str:
    """CSV: a line for each series and interval of which something is recorded; sizes in bytes, shares as parts."""
    names = list(dict.fromkeys(name for series in recorded.series for name in series.values))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time", "device", "group", *(name.replace(" ", "_") for name in names)])
    for series in recorded.series:
        for place in _known(series):
            cells = [series.values[name][place] if name in series.values else None for name in names]
            writer.writerow([recorded.time[place], series.device, series.group or "", *cells])
    return out.getvalue()


def plot(recorded: Recorded, *, width: int) -> str:
    """The share over time, a block for each interval, and beneath it what was promised and what it waited for."""
    return "\n".join(_heading(recorded, series) + _plot(recorded, series, width) for series in recorded.series)


def waits(series: RecordedSeries) -> list[tuple[str, float]]:
    """What it waited for, most first: the part of the time that is recorded."""
    found = []
    for name, values in series.values.items():
        if name.startswith("waits "):
            known = [value for value in values if value is not None]
            if known and (part := sum(known) / len(known)) >= 0.005:
                found.append((name.removeprefix("waits "), part))
    return sorted(found, key=lambda each: -each[1])


def _known(series: RecordedSeries) -> list[int]:
    values = next(iter(series.values.values()), [])
    return [place for place in range(len(values)) if any(each[place] is not None for each in series.values.values())]


def _heading(recorded: Recorded, series: RecordedSeries) -> str:
    simulated = "  SIMULATED MACHINE, not a GPU" if recorded.simulated else ""
    return f"{series.group or 'all groups'} on {series.device}, every {_span(recorded.step_s)}{simulated}\n"


def _table(recorded: Recorded, series: RecordedSeries) -> str:
    shown = {
        header: (series.values[name], show)
        for header, (name, show) in (OF_A_GROUP if series.group else OF_A_DEVICE).items()
        if name in series.values and (header in ALWAYS or any(series.values[name]))
    }
    lines = []
    for place in _known(series):
        cells = [UNKNOWN if values[place] is None else show(values[place] or 0.0) for values, show in shown.values()]
        lines.append([_clock(recorded.time[place], recorded), *cells, _most(series, place)])
    header = ["UNTIL", *shown, "WAITED FOR"]
    return "\n".join(table(header, lines, right=frozenset(shown))) + "\n"


def _most(series: RecordedSeries, place: int) -> str:
    waited = {
        name.removeprefix("waits "): value
        for name, values in series.values.items()
        if name.startswith("waits ") and (value := values[place])
    }
    most = max(waited, key=lambda reason: waited[reason], default=None)
    return "" if most is None else f"{most} ({format_share(waited[most])})"


def _plot(recorded: Recorded, series: RecordedSeries, width: int) -> str:
    values = series.values.get("share", [])
    shares = _fitted(values, max(10, width - 6))
    top = max(0.1, *(share or 0.0 for share in shares), *(v or 0.0 for v in series.values.get("min", [])))
    lines = []
    for row in reversed(range(ROWS)):
        label = format_share(top * (row + 1) / ROWS) if row in {ROWS - 1, ROWS // 2 - 1} else ""
        lines.append(f"{label:>5} " + "".join(_block(share, top, row) for share in shares).rstrip())
    first, last = _clock(recorded.time[0], recorded), _clock(recorded.time[-1], recorded)
    lines.append(f"{'':>6}{first}{last:>{max(1, len(shares) - len(first))}}")
    known = [share for share in values if share is not None]
    said = [f"mean {format_share(sum(known) / len(known))}"] if known else ["nothing recorded"]
    said += [
        f"{name} {format_share(v)}" for name in ("min", "max") if (v := _last(series.values.get(name, []))) is not None
    ]
    said += [f"waited {format_share(part)} ({reason})" for reason, part in waits(series)]
    return "\n".join([*lines, "      " + ", ".join(said)]) + "\n"


def _block(share: float | None, top: float, row: int) -> str:
    if share is None:
        return "·" if row == 0 else " "
    return BLOCKS[max(0, min(8, round((share / top * ROWS - row) * 8)))]


def _fitted(values: Sequence[float | None], most: int) -> list[float | None]:
    """The values, or means of neighbours where there are more than ``most``."""
    each = -(-len(values) // most) or 1
    found: list[float | None] = []
    for first in range(0, len(values), each):
        known = [value for value in values[first : first + each] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _clock(at: int, recorded: Recorded) -> str:
    day = recorded.time[-1] - recorded.time[0] > 20 * 3600
    return time.strftime("%m-%d %H:%M" if day else "%H:%M:%S", time.localtime(at))


def _span(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
