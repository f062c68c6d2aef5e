"""JSON of the apiserver's, parts of which anybody may have written as they like: parameters of claims, managedFields.

Go reads what is 10,000 deep, and passes on bytes and escapes that are no characters. What cannot be read ends a list or
a watch of all objects, for as long as the one is there. So it is read without what nobody here looks at.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_DEPTH = 100  # of a pod in a list that is looked at there are 10
MOST_DIGITS = 640  # that Python always takes
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")  # of a character; one without the other is no text that can be sent on
_PART = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


def decoded(text: bytes) -> Any:
    """The value; where it is too deep for Python, with null for what is deeper than `MOST_DEPTH`. Raises ValueError."""
    whole = text.decode(errors="replace")
    try:
        return _value(whole)
    except RecursionError:
        return _value(_shallow(whole))


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        value = json.loads(text, parse_int=_number)
    if _HALVES.search(text) is None:
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _number(text: str) -> float:
    return int(text) if len(text) <= MOST_DIGITS else float(text)


def _shallow(text: str) -> str:
    kept: list[str] = []
    depth = begin = 0
    for part in _PART.finditer(text):
        if part[0] in "[{":
            depth += 1
            if depth == MOST_DEPTH + 1:
                kept += text[begin : part.start()], "null"
        elif part[0] in "]}":
            if depth == MOST_DEPTH + 1:
                begin = part.end()
            depth -= 1
    return "".join(kept) + text[begin:]
