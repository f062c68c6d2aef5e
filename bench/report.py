"""Rows of a benchmark: a number, what it should be, whether it is; as text and JSON. Pure but for `Report`, `end`."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = 1
BOUND = re.compile(r"^(<=|>=) (-?[\d.]+)$")
AROUND = re.compile(r"^(-?[\d.]+) \+- ([\d.]+)$")


def meets(value: float, target: str) -> bool | None:
    """Whether the value is within ``<= x``, ``>= x`` or ``x +- y``; None for a target in words, or none (``-``)."""
    if bound := BOUND.match(target):
        limit = float(bound[2])
        return value <= limit if bound[1] == "<=" else value >= limit
    if around := AROUND.match(target):
        return abs(value - float(around[1])) <= float(around[2]) + 1e-12
    return None


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    target: str = "-"
    note: str = ""

    @property
    def verdict(self) -> str:
        return {True: "met", False: "missed", None: ""}[meets(self.value, self.target)]

    def as_dict(self) -> dict[str, object]:
        """For JSON, which has no word for a value there is not."""
        return asdict(self) | {"value": self.value if math.isfinite(self.value) else None, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Row:
        value = math.nan if row["value"] is None else float(row["value"])
        return cls(row["what"], value, row["target"], row["note"])


def number(value: float) -> str:
    """Four digits behind the point for ratios, fewer for what is large."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"


def line(row: Row) -> str:
    return f"{row.what:<72} {number(row.value):>9}   {row.target:<11} {row.verdict:<7} {row.note}".rstrip()


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns side by side: those of ``left`` to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    to_left = {column % len(head) for column in left}

    def render(cells: Sequence[str]) -> str:
        padded = (
            f"{c:<{w}}" if i in to_left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join(map(render, [head, *rows]))


def heading(about: Mapping[str, object]) -> str:
    """One line: where this was measured; on a simulated machine the first word says so."""
    text = " | ".join(f"{k}: {v}" for k, v in about.items() if k != "simulated")
    return f"SIMULATED, not a GPU | {text}" if about.get("simulated") else text


class Report:
    """Prints each row at once, and keeps a JSON file up to date with it: what is cut short has left its results."""

    def __init__(self, about: Mapping[str, object], path: Path | None = None) -> None:
        self.about = dict(about)
        self.rows: list[Row] = []
        self.parts: dict[str, list[dict[str, object]]] = {}  # other data than rows: distributions, courses over time
        self._path = path
        print(heading(about), flush=True)

    def add(self, what: str, value: float, target: str = "-", *, note: str = "") -> None:
        row = Row(what, round(value, 4), target, note)
        self.rows.append(row)
        print(line(row), flush=True)
        self.write()

    def put(self, part: str, entry: dict[str, object]) -> None:
        self.parts.setdefault(part, []).append(entry)
        self.write()

    def write(self) -> None:
        if not self._path:
            return
        rows = [row.as_dict() for row in self.rows]
        document = {"schema": SCHEMA, "about": self.about, "rows": rows, **self.parts}
        # Whole or not at all, since this program may be ended at any time.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(compact(document) + "\n")
        fresh.replace(self._path)


def compact(document: Mapping[str, object]) -> str:
    """JSON with a line for each entry of a list at the top, so that a committed result can be read and compared."""
    members = []
    for key, value in document.items():
        if isinstance(value, list):
            entries = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in value)
            members.append(f" {json.dumps(key)}: [\n{entries}\n ]" if value else f" {json.dumps(key)}: []")
        else:
            members.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(members) + "\n}"


def end(found: Mapping[str, Any], verdicts: Mapping[str, bool], output: Path | None) -> int:
    """Prints what was ``found``, with the machine and the verdicts, and writes it to ``output``; the exit status."""
    about = {"machine": platform.node(), "processors": os.cpu_count(), "verdicts": dict(verdicts)}
    text = json.dumps({**found, **about}, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)
    return 0 if all(verdicts.values()) else 1
