"""Kubernetes' quantities: ``16Gi``, ``500m``, ``1e9``, ``25``.

Suffixes differ from gemlet's own sizes: case matters.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gemlet.errors import InvalidValue

_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
}
_FACTORS = {**_DECIMAL, **{suffix: Fraction(factor) for suffix, factor in _BINARY.items()}}
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)


def parse_quantity(text: str) -> Fraction:
    """The exact value. Raises InvalidValue if ``text`` is not a quantity."""
    match = _FORM.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise InvalidValue(f"{text!r} is not a quantity", hint="write a number with Mi, Gi or no suffix, such as 16Gi")
    suffix = match["suffix"] or ""
    value = Fraction(match["number"])
    value *= _FACTORS[suffix] if suffix in _FACTORS else Fraction(10) ** int(suffix[1:])
    return -value if match["sign"] == "-" else value


def parse_bytes(text: str) -> int:
    """Bytes of a quantity of memory, rounded up as Kubernetes does. Raises InvalidValue below 0 too."""
    value = parse_quantity(text)
    if value < 0:
        raise InvalidValue(f"{text!r} is negative", hint="write a size such as 16Gi")
    return -int(-value // 1)


def parse_percent(text: str) -> int:
    """A whole number of percent. Raises InvalidValue for anything else; the bounds are the caller's."""
    try:
        value = parse_quantity(text)
    except InvalidValue:
        value = None
    if value is None or value.denominator != 1:
        raise InvalidValue(
            f"{text!r} is not a whole number of percent", hint="write a number from 1 to 100, such as 25"
        )
    return int(value)


def format_bytes(size: int) -> str:
    """The shortest exact quantity: ``16Gi``, ``1500Mi``, ``1000``."""
    for suffix, factor in reversed(_BINARY.items()):
        if size and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
