"""Where keys and values stand in a TOML text.

tomllib gives line and column for syntax errors only. To say where a value is that is well-formed but wrong, this
scanner walks over a text that tomllib has already accepted. It need not judge anything, so it is short: it finds the
extent of every key and value and leaves their meaning to tomllib.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from dataclasses import dataclass

Path = tuple[str | int, ...]

COMMENT = re.compile(r"#[^\n]*")
_BLANK = re.compile(rf"(?:[ \t\r\n]|{COMMENT.pattern})*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|'  # up to two quotes may stand directly before the closing three
    r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\])*"|'
    r"'[^']*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"\d{4}-\d\d-\d\d \d[^,\]}\s#]*|[^,\]}\s#]+")  # a date may hold one blank


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of a key (or table header, or array element) and of its value in the text; the same where there is no key."""

    key: int
    value: int


def scan(text: str) -> dict[Path, Offsets]:
    """Offsets by path for a valid TOML ``text``: ``("groups", "a", "min")``, ``("devices", 0)``."""
    scanner = _Scanner(text)
    with contextlib.suppress(LookupError, ValueError):  # a newer TOML: some places are better than none
        scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, Offsets] = {}
        self._lengths: dict[Path, int] = {}  # of arrays of tables

    def document(self) -> None:
        table: Path = ()
        self._blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            self._blank()

    def _header(self) -> Path:
        start = self.at
        array = self.text.startswith("[[", start)
        self.at += 2 if array else 1
        self._blank()
        keys = self._dotted_key()
        self._blank()
        self.at += 2 if array else 1
        path: Path = ()
        for number, key in enumerate(keys, 1):
            path += (key,)
            if array and number == len(keys):
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if path in self._lengths:
                path += (self._lengths[path] - 1,)
            self.found.setdefault(path, Offsets(start, start))
        return path

    def _assignment(self, table: Path) -> None:
        start = self.at
        path = table
        for key in self._dotted_key():
            path += (key,)
            self.found.setdefault(path, Offsets(start, start))
        self._blank()
        self.at += 1  # the equals sign
        self._blank()
        self.found[path] = Offsets(start, self.at)
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys = [self._key()]
        self._blank()
        while self.text.startswith(".", self.at):
            self.at += 1
            self._blank()
            keys.append(self._key())
            self._blank()
        return keys

    def _key(self) -> str:
        bare = _BARE_KEY.match(self.text, self.at)
        if bare:
            self.at = bare.end()
            return bare.group()
        start = self.at
        self._skip(STRING)
        return next(iter(tomllib.loads(f"{self.text[start : self.at]} = 0")))

    def _value(self, path: Path) -> None:
        opening = self.text[self.at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._skip(STRING if opening in "\"'" else _SCALAR)

    def _array(self, path: Path) -> None:
        self.at += 1
        self._blank()
        number = 0
        while self.text[self.at] != "]":
            element = (*path, number)
            self.found[element] = Offsets(self.at, self.at)
            self._value(element)
            self._separator()
            number += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        self._blank()
        while self.text[self.at] != "}":
            self._assignment(path)
            self._separator()
        self.at += 1

    def _separator(self) -> None:
        self._blank()
        if self.text[self.at] == ",":
            self.at += 1
            self._blank()

    def _blank(self) -> None:
        self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise LookupError(f"no place found after character {self.at}")
        self.at = match.end()
