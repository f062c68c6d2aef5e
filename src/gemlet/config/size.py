"""Sizes of memory as people write them: ``8GiB``, ``2 GB``, ``1.5g``, ``1024``.

The suffixes are Gemini's: K, M, G, T and KB, MB, GB, TB are powers of ten, Ki, KiB and so on powers of two. Unlike
with Gemini, case does not matter and a decimal fraction is welcome as long as it comes to a whole number of bytes: a
limit is enforced to the byte, so it is never rounded behind the user's back.
"""

from __future__ import annotations

import re

from gemlet.errors import InvalidValue

MAX_BYTES = 2**63 - 1  # what a signed 64-bit counter holds; far above any device

_FACTORS = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgt", 1)}}
_FACTORS |= {f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?\s*(?P<unit>[kmgt]i?)?b?", re.IGNORECASE | re.ASCII)
_EXAMPLE = "write a number of bytes, or a number with K, M, G or T (powers of ten) or Ki, Mi, Gi or Ti, such as 8GiB"


def parse_size(text: str) -> int:
    """Bytes of ``text``. Raises InvalidValue for anything that is not a whole number of bytes in 0..MAX_BYTES."""
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped)
    if match is None or not (match["whole"] or match["fraction"]):
        raise InvalidValue(f"{text!r} is not a size", hint=_hint(stripped))
    fraction = match["fraction"] or ""
    digits = int(match["whole"] + fraction) if len(stripped) < 64 else MAX_BYTES + 1  # keep int() cheap
    size, rest = divmod(digits * _FACTORS[(match["unit"] or "").lower()], 10 ** len(fraction))
    if rest:
        raise InvalidValue(f"{text!r} is not a whole number of bytes", hint=f"write {size} or {size + 1}")
    return check_size(size)


def check_size(size: int) -> int:
    """``size`` itself. Raises InvalidValue outside 0..MAX_BYTES."""
    if size < 0:
        raise InvalidValue(f"{size} is negative", hint="leave the limit out for no limit")
    if size > MAX_BYTES:
        raise InvalidValue("the size is larger than 2^63 bytes", hint="leave the limit out for no limit")
    return size


def _hint(text: str) -> str:
    if not text:
        return _EXAMPLE
    if text.startswith("-"):
        return "a size is not negative; leave the limit out for no limit"
    if "," in text:
        return "write a point for decimals and nothing between thousands, such as 1.5GiB"
    return _EXAMPLE


def exact_size(size: int) -> str:
    """The shortest text that parse_size() reads back as ``size``: ``8GiB``, ``2GB``, ``1025``."""
    texts = [str(size)]
    for unit, factor in _FACTORS.items():
        if unit and size and size % factor == 0:
            texts.append(f"{size // factor}{unit.capitalize()}B")
    return min(texts, key=len)


def format_size(size: int) -> str:
    """``size`` in bytes for people, to three digits and in powers of two: ``5.1 GiB``, ``512 MiB``, ``0 B``."""
    sign = "-" if size < 0 else ""
    amount = float(abs(size))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1000:  # "1000 MiB" would be wider than "1.0 GiB"
            return f"{sign}{_short(amount)} {unit}"
        amount /= 1024
    return f"{sign}{_short(amount)} TiB"


def _short(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0") if amount < 99.95 else f"{amount:.0f}"
