"""JSON of the apiserver's, parts of which anybody may have written as they like: parameters of claims, managedFields.

Go reads what is 10,000 deep, and passes on bytes and escapes that are no characters. What cannot be read ends a list or
a watch of all objects, for as long as the one is there. So it is read without what nobody here looks at.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_DEPTH = 100  # of a pod in a list that is looked at there are 10
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character: one without the other is no text that can be sent on
# By runs of backslashes, of which the last is one of an escape where their number is odd: a pod may have megabytes of
# other escapes, and Python would take seconds to be asked about each.
_ESCAPE = re.compile(
    r"(\\(?<!\\\\)(?:\\\\)*+)u[dD](?:[89abAB]..(\\u[dD][c-fC-F]..)|[89a-fA-F]..)",
    re.DOTALL,
)
_PART = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


def decoded(text: bytes) -> Any:
    """The value; where it is too deep for Python, with null for what is deeper than `MOST_DEPTH`. Raises ValueError."""
    whole = text.decode(errors="replace")
    if _HALF.search(whole) is not None:
        whole = _ESCAPE.sub(lambda found: found[0] if found[2] else f"{found[1][:-1]}\ufffd", whole)
    try:
        return json.loads(whole)
    except RecursionError:
        return json.loads(_shallow(whole))


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
