"""Collects what is wrong with one file, so that a person sees everything at once and where it stands."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from gemlet.errors import ConfigError, InvalidValue

MAX_MESSAGE = 1000  # characters


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A character of a text; both count from 1."""

    line: int
    column: int


class Source:
    """The text of one file and the places in it. ``path`` is only used in messages."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text.removeprefix("\ufeff")  # editors on other systems write a byte order mark
        self.path = path
        self._starts = [0, *(offset + 1 for offset, character in enumerate(self.text) if character == "\n")]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)

    def lines(self) -> list[str]:
        """Without their ends. Only line feeds end a line, as for every reader of these formats."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]


class Report:
    """Errors and warnings of one file in the order of their places."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._errors: list[ConfigError] = []
        self._warnings: list[tuple[Place | None, str]] = []

    def error(self, message: str, place: Place | None = None, *, hint: str | None = None) -> None:
        line, column = (place.line, place.column) if place else (None, None)
        if len(message) > MAX_MESSAGE:  # it quotes the file, and a key of the file may be as long as the file
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
        self._errors.append(ConfigError(message, path=self.path, line=line, column=column, hint=hint))

    def invalid(self, subject: str, value: InvalidValue, place: Place | None) -> None:
        """``subject`` says whose value it is, such as ``min of group 'a'``."""
        self.error(f"{subject}: {value.message}", place, hint=value.hint)

    def warning(self, message: str, place: Place | None = None) -> None:
        self._warnings.append((place, message))

    def raise_errors(self) -> None:
        """Raises the first error, with the others attached, if there is any."""
        if not self._errors:
            return
        first, *others = sorted(self._errors, key=lambda error: (error.line or 0, error.column or 0))
        first.others = tuple(others)
        raise first

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line each, ``file:line:column: text``."""
        ordered = sorted(self._warnings, key=lambda warning: warning[0] or Place(0, 0))
        return tuple(
            f"{self.path}:{place.line}:{place.column}: {message}" if place else f"{self.path}: {message}"
            for place, message in ordered
        )
