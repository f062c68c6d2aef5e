"""Which fields a message in protobuf's text format names; the parser passes over unknown ones in silence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# With what is never closed, too: were it no match, each quote within it would be tried to the end of the line.
QUOTED = r""""(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|#[^\n]*"""
_TOKEN = re.compile(QUOTED + r"|[A-Za-z_]\w*|[^\s\w]|\w+")


@dataclass(frozen=True, slots=True)
class Field:
    """``path``: its name after those of the messages it is in, "input.name"; ``value``: as written, or ""."""

    path: str
    line: int
    known: bool
    value: str


def fields(text: str, descriptor: Any) -> Iterator[Field]:
    """Those of a text that the parser accepts. ``descriptor``: of the message."""
    tokens = [found for found in _TOKEN.finditer(text) if not found[0].startswith("#")]
    within: list[tuple[str, Any]] = [("", descriptor)]  # path and descriptor, None within an unknown field
    path, inner = "", None
    line, counted = 1, 0  # newlines before ``counted``: each part of the text is looked through once
    for number, found in enumerate(tokens):
        token = found[0]
        following = tokens[number + 1][0] if number + 1 < len(tokens) else ""
        if token in {"{", "<"}:
            within.append((path, inner))
        elif token in {"}", ">"}:
            if len(within) > 1:
                path, inner = within.pop()
        elif following in {":", "{", "[", "<"} and (token[0].isalpha() or token[0] == "_"):
            before, message = within[-1]
            path = f"{before}.{token}" if before else token
            field = message.fields_by_name.get(token) if message is not None else None
            inner = field.message_type if field is not None else None
            value = tokens[number + 2][0] if following == ":" and number + 2 < len(tokens) else ""
            line, counted = line + text.count("\n", counted, found.start()), found.start()
            yield Field(path, line, field is not None, value if value not in {"{", "[", "<"} else "")
