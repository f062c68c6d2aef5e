"""Reads the configuration of Gemini's second generation, a GLib key file, usually called resource.conf.

    [training]
    MinUtil = 0.3
    MaxUtil = 0.6
    MemoryLimit = 8GiB

It is read as GLib reads it, and more leniently where GLib's reading stopped Gemini: comments may follow a value and may
start with a semicolon, and a share may be a percentage. It is read more strictly where Gemini promised what it could
not keep: a section or key given twice, a share outside 0..1, MinUtil above MaxUtil. Keys that Gemini ignored are
ignored with a warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gemlet.config import draft, suggest
from gemlet.config.draft import GroupDraft
from gemlet.config.quantities import parse_share, parse_size
from gemlet.config.report import Place, Report, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.model import Configuration

DEFAULT_MEMORY = 1024**3  # Gemini's, where the file does not say

_KEYS: dict[str, tuple[str, Callable[[str], object]]] = {
    "MinUtil": ("min", parse_share),
    "MaxUtil": ("max", parse_share),
    "MemoryLimit": ("memory", parse_size),
}
_HEADER = re.compile(r"\s*\[(?P<name>[^\[\]]*)\]\s*(?:[#;].*)?")
_ASSIGNMENT = re.compile(r"\s*(?P<key>[^=]*?)\s*=\s*(?P<value>[^#;]*)")
_COMMENT = re.compile(r"\s*(?:[#;].*)?")


def read(source: Source) -> Configuration:
    """The configuration in ``source``. Raises ConfigError with every error of the file."""
    reader = _Reader(Report(source.path))
    for number, line in enumerate(source.lines(), 1):
        reader.line(number, line)
    return reader.finish()


class _Reader:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.drafts: dict[str, GroupDraft] = {}
        self.group: GroupDraft | None = None
        self.keys: dict[str, Place] = {}  # of this section

    def line(self, number: int, line: str) -> None:
        if _COMMENT.fullmatch(line):
            return
        start = Place(number, len(line) - len(line.lstrip()) + 1)
        if header := _HEADER.fullmatch(line):
            self._section(header["name"], start)
        elif "=" in line and not line.lstrip().startswith("["):
            self._assignment(number, line, start)
        else:
            hint = "write [group] or Key = value; start a comment with #"
            self.report.error("expected a section or a key with a value", start, hint=hint)

    def _section(self, name: str, place: Place) -> None:
        if name in self.drafts:
            first = self.drafts[name].place.line
            self.report.error(f"group {name!r} appears twice", place, hint=f"merge it with the one in line {first}")
        self.group = GroupDraft(name, place, self.report)
        self.keys = {}
        self.drafts.setdefault(name, self.group)

    def _assignment(self, number: int, line: str, start: Place) -> None:
        match = _ASSIGNMENT.match(line)
        assert match is not None  # there is an equals sign
        key, value = match["key"], match["value"].rstrip()
        if self.group is None:
            hint = "start with the name of a group in brackets, such as [training]"
            self.report.error(f"key {key!r} stands before the first section", start, hint=hint)
            return
        if key not in _KEYS:
            likely = suggest.closest(key, _KEYS)
            meant = f"; did you mean {likely}?" if likely else ""
            self.report.warning(f"unknown key {key!r} of group {self.group.name!r} is ignored{meant}", start)
            return
        if key in self.keys:
            hint = f"remove one of them; the first is in line {self.keys[key].line}"
            self.report.error(f"{key} of group {self.group.name!r} is given twice", start, hint=hint)
            return
        self.keys[key] = start
        field, parse = _KEYS[key]
        self.group.read(field, parse, value, Place(number, match.start("value") + 1), key=key)

    def finish(self) -> Configuration:
        for group in self.drafts.values():
            group.default("memory", DEFAULT_MEMORY)
        return draft.finish(list(self.drafts.values()), self.report)
