"""TOML of any origin: `loads` is tomllib's, and refuses what tomllib is not made for.

tomllib calls itself for each array in an array, copies a key's parts for each part, and gives up on long numbers: a
file of a few kilobytes ends in a RecursionError, one of a hundred takes gigabytes. Nothing that people write comes near
the bounds here, so they are errors of the file, with a place.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from gemlet.config.toml_places import COMMENT, STRING

MAX_DEPTH = 32  # of arrays and tables in one another
MAX_PARTS = 128  # of one key; a name of 255 bytes has fewer
MAX_DIGITS = 400  # of one number; the largest float has 309
_TOKEN = re.compile(
    rf"{COMMENT.pattern}|(?:{STRING.pattern})|(?P<digits>[0-9_]{{{MAX_DIGITS},}})|(?P<mark>[\[{{\]}}.=,\n])", re.DOTALL
)


def loads(text: str) -> dict[str, Any]:
    """The document in ``text``. Raises tomllib.TOMLDecodeError, or ValueError for a number that Python cannot hold."""
    _check(text)
    return tomllib.loads(text)


def _check(text: str) -> None:
    # These are tomllib's own tokens as far as tomllib would read: it stops at the first invalid one.
    depth, dots = 0, 0
    for token in _TOKEN.finditer(text):
        mark = token["mark"]
        if token["digits"]:
            _refuse(text, token.start(), f"a number or a word of {MAX_DIGITS} digits or more")
        if mark is None:
            continue
        if mark == ".":
            dots += 1
            if dots == MAX_PARTS:
                _refuse(text, token.start(), f"a key of more than {MAX_PARTS} parts")
            continue
        dots = 0
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                _refuse(text, token.start(), f"arrays or tables more than {MAX_DEPTH} deep")
        elif mark in "]}":
            depth -= 1


def _refuse(text: str, offset: int, what: str) -> None:
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - before.rfind("\n")
    raise tomllib.TOMLDecodeError(f"{what} (at line {line}, column {column})")
