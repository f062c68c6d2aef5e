"""Shares of a device as people write them: ``30%``, ``0.3``, ``.5``."""

from __future__ import annotations

import re

from gemlet.errors import InvalidValue

_NUMBER = re.compile(r"[0-9]+\.?[0-9]*(?:e[+-]?[0-9]{1,3})?|\.[0-9]+(?:e[+-]?[0-9]{1,3})?", re.IGNORECASE | re.ASCII)
_PERCENT = re.compile(r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)\s*%", re.ASCII)
_EXAMPLE = "write a number between 0 and 1, or a percentage, such as 0.3 or 30%"


def parse_share(text: str) -> float:
    """The share in 0..1. Raises InvalidValue for anything else, NaN included.

    Only an explicit percent sign makes 30 mean 0.3: whether a bare 1 is all of the device or a hundredth must not
    depend on a guess.
    """
    stripped = text.strip()
    percent = _PERCENT.fullmatch(stripped)
    if percent:
        # Not number / 100: shifting the decimal exponent makes 33.3% the same float as 0.333.
        share = float(f"{percent['number']}e-2")
        if share > 1:
            raise InvalidValue(f"{text!r} is more than the whole device", hint="the largest share is 100%")
        return share
    if _NUMBER.fullmatch(stripped):
        return check_share(float(stripped))
    hint = "write a point for decimals, such as 0.5" if "," in stripped else _EXAMPLE
    raise InvalidValue(f"{text!r} is not a share", hint=hint)


def check_share(share: float) -> float:
    """``share`` as a float. Raises InvalidValue unless it is in 0..1."""
    if 0 <= share <= 1:
        return float(share)
    if 1 < share <= 100:
        raise InvalidValue(
            f"share {share:g} is more than 1, the whole device", hint=f'"{share:g}%" would be a percentage'
        )
    raise InvalidValue(f"share {share:g} is not between 0 and 1", hint=_EXAMPLE)


def format_share(share: float) -> str:
    """``share`` for people, to a tenth of a percent: ``30%``, ``33.3%``; only zero prints as 0%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share * 100:.1f}".removesuffix(".0") + "%"
