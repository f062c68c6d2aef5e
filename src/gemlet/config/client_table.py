"""Reads the configuration of Gemini's first generation, usually called resource-config.txt.

    2
    training 0.3 0.6 8589934592
    notebook 0.0 1.0 4294967296

The number of clients, then one line each: name, REQUEST (what is guaranteed), LIMIT, and memory in bytes. Gemini took
what it found and read the last client again where a line was missing; here the number must be right.
KubeShare 2.0 writes LIMIT before REQUEST. The columns are not guessed: if a guarantee is above its limit, the hint says
so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gemlet.config import draft
from gemlet.config.draft import GroupDraft
from gemlet.config.quantities import parse_share, parse_size
from gemlet.config.report import Place, Report, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.model import Configuration

_COLUMNS: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("min", parse_share),
    ("max", parse_share),
    ("memory", parse_size),
)
_COMMENT = re.compile(r"(?:^|(?<=\s))[#;].*")  # a name may contain either character
_SWAPPED = "write the columns as ID REQUEST LIMIT MEMORY: REQUEST and LIMIT look swapped, as in KubeShare 2.0"


def read(source: Source) -> Configuration:
    """The configuration in ``source``. Raises ConfigError with every error of the file."""
    report = Report(source.path)
    rows = []
    for number, line in enumerate(source.lines(), 1):
        cells = [(Place(number, word.start() + 1), word[0]) for word in re.finditer(r"\S+", _COMMENT.sub("", line))]
        if cells:
            rows.append(cells)
    if not rows:
        report.error("the file is empty", Place(1, 1), hint="write the number of clients into the first line")
        report.raise_errors()
    drafts: dict[str, GroupDraft] = {}
    for row in rows[1:]:
        _client(row, drafts, report)
    _count(rows[0], len(rows) - 1, report)
    return draft.finish(list(drafts.values()), report, hint=_SWAPPED)


def _count(row: list[tuple[Place, str]], found: int, report: Report) -> None:
    place, text = row[0]
    if len(row) > 1 or not re.fullmatch("[0-9]{1,9}", text):
        report.error("the first line is not the number of clients", place, hint=f"write {found}")
    elif int(text) != found:
        hint = f"write {found}, or complete the file"
        report.error(f"the first line says {int(text)} clients, but {found} follow", place, hint=hint)


def _client(row: list[tuple[Place, str]], drafts: dict[str, GroupDraft], report: Report) -> None:
    place, name = row[0]
    if len(row) != 1 + len(_COLUMNS):
        hint = "write a client as one line: ID REQUEST LIMIT MEMORY, such as training 0.3 0.6 8589934592"
        report.error(f"expected 4 columns, found {len(row)}", place, hint=hint)
        drafts.setdefault(name, GroupDraft(name, place, report))
        return
    group = GroupDraft(name, place, report)
    if name in drafts:
        report.error(
            f"client {name!r} appears twice", place, hint=f"remove this line or line {drafts[name].place.line}"
        )
    drafts.setdefault(name, group)
    for (field, parse), (where, text) in zip(_COLUMNS, row[1:], strict=True):
        group.read(field, parse, text, where)
