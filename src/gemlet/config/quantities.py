"""Shares, sizes, durations and factors as people write them: the one place that parses and prints them.

    share      30%, 0.3, .5           a fraction in 0..1; only a percent sign makes 30 mean 0.3
    size       8GiB, 2 GB, 1.5g, 1024 bytes; K, M, G, T are powers of ten, Ki, Mi, Gi, Ti powers of two
    duration   20ms, 1.5s, 2m         nanoseconds
    factor     2, 0.5                 above 0 and at most a million

Every error says what was found and what was expected. Standard library only: `gemlet run` imports this.
(Kubernetes' quantities have another grammar: kube/quantity.py.)
"""

from __future__ import annotations

import re

from gemlet.errors import InvalidValue

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000  # in nanoseconds
MAX_BYTES = 2**63 - 1  # what a signed 64-bit counter holds; far above any device
MAX_NANOSECONDS = 2**63 - 1
MAX_FACTOR = 1e6

_EXPONENT = r"(?:e[+-]?[0-9]{1,3})?"
_NUMBER = re.compile(rf"[0-9]+\.?[0-9]*{_EXPONENT}|\.[0-9]+{_EXPONENT}", re.IGNORECASE | re.ASCII)
_PERCENT = re.compile(r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)\s*%", re.ASCII)
_DECIMAL = r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
_SIZE = re.compile(rf"{_DECIMAL}\s*(?P<unit>[kmgt]i?)?b?", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(rf"{_DECIMAL}\s*(?P<unit>ns|us|ms|s|m|h|d)", re.ASCII)
_NEGATIVE = re.compile(r"-\s*[.0-9]")

_BYTES = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgt", 1)}}
_BYTES |= {f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}
_NANOSECONDS = {
    "ns": 1,
    "us": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86400 * SECOND,
}

_SHARE_EXPECTED = "expected a number from 0 to 1, or a percentage such as 30%"
_SIZE_EXPECTED = "expected bytes, or a number with a unit, such as 8GiB"
_DURATION_EXPECTED = "expected a number with a unit, such as 20ms or 1.5s"
_FACTOR_EXPECTED = f"expected a positive number up to {MAX_FACTOR:.0f}, such as 2"


# --- shares --------------------------------------------------------------------------------------------------------


def parse_share(text: str) -> float:
    """The share in 0..1. Raises InvalidValue for anything else, NaN included.

    Whether a bare 1 is all of the device or a hundredth must not depend on a guess, so it is all of it.
    """
    stripped = text.strip()
    if percent := _PERCENT.fullmatch(stripped):
        # Not number / 100: shifting the decimal exponent makes 33.3% the same float as 0.333.
        share = float(f"{percent['number']}e-2")
        if share > 1:
            raise InvalidValue(
                f"{_quoted(text)} is more than the whole device: expected at most 100%", hint="write 100% or less"
            )
        return share
    if _NUMBER.fullmatch(stripped):
        return check_share(float(stripped))
    raise _not_a("share", text, _SHARE_EXPECTED, "write a share such as 0.3 or 30%")


def check_share(share: float) -> float:
    """``share`` as a float. Raises InvalidValue unless it is in 0..1."""
    if 0 <= share <= 1:
        return float(share)
    if 1 < share <= 100:
        raise InvalidValue(
            f"{share:g} is more than 1, the whole device: {_SHARE_EXPECTED}",
            hint=f'write "{share:g}%" if you mean a percentage',
        )
    raise InvalidValue(f"{share:g} is not between 0 and 1: {_SHARE_EXPECTED}", hint="write a share such as 0.3 or 30%")


def check_fraction(fraction: float) -> float:
    """A fraction of the multiprocessors. As check_share, but not 0: a kernel needs at least one multiprocessor."""
    if check_share(fraction) == 0:
        raise InvalidValue(
            "0 is not a valid SM fraction: expected a fraction above 0 and at most 1",
            hint="leave it out for all multiprocessors",
        )
    return float(fraction)


def format_share(share: float) -> str:
    """``share`` for people, to a tenth of a percent: ``30%``, ``33.3%``; only zero prints as 0%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def exact_percent(share: float) -> str:
    """``share`` in percent for programs, without the sign: MPS and glet's files take a fraction so."""
    return f"{share * 100:.6g}"


# --- sizes ---------------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Bytes of ``text``. Raises InvalidValue for anything that is not a whole number of bytes in 0..MAX_BYTES.

    The suffixes are Gemini's. Unlike with Gemini, case does not matter and a decimal fraction is welcome as long as it
    comes to a whole number of bytes: a limit is enforced to the byte, so it is never rounded behind the user's back.
    """
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped)
    if match is None or not (match["whole"] or match["fraction"]):
        part = "not a part of the device but " if _PERCENT.fullmatch(stripped) else ""
        raise _not_a("size", text, _SIZE_EXPECTED, f"write {part}a size such as 8GiB or 500MB", negative="no limit")
    size, rest, _ = _scaled(match, _BYTES[(match["unit"] or "").lower()])
    if rest:
        raise InvalidValue(
            f"{_quoted(text)} is not a whole number of bytes: expected one without a fraction",
            hint=f"write {size} or {size + 1}" + ("" if match["unit"] else f", or add a unit, such as {stripped}GiB"),
        )
    return check_size(size)


def check_size(size: int) -> int:
    """``size`` itself. Raises InvalidValue outside 0..MAX_BYTES."""
    if size < 0:
        raise InvalidValue(f"{size} is negative: {_SIZE_EXPECTED}", hint="leave the limit out for no limit")
    if size > MAX_BYTES:
        raise InvalidValue("the size is too large: expected less than 2^63 bytes", hint="leave it out for no limit")
    return size


def exact_size(size: int) -> str:
    """The shortest text that parse_size() reads back as ``size``: ``8GiB``, ``2GB``, ``1025``."""
    texts = [str(size)]
    for unit, factor in _BYTES.items():
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


# --- durations and factors -----------------------------------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Nanoseconds of ``text``, rounded to the nearest. Raises InvalidValue for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not (match["whole"] or match["fraction"]):
        hint = f"add a unit: {text.strip()}s" if _NUMBER.fullmatch(text.strip()) else "write a duration such as 20ms"
        raise _not_a("duration", text, _DURATION_EXPECTED, hint)
    duration, rest, scale = _scaled(match, _NANOSECONDS[match["unit"]])
    if duration > MAX_NANOSECONDS:
        raise InvalidValue(
            f"{_quoted(text)} is too long: expected less than 2^63 ns, which is 292 years", hint="write a shorter time"
        )
    return duration + (2 * rest >= scale)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as ``1.5s`` or ``20ms``. Raises InvalidValue."""
    return parse_duration(text) / SECOND


def parse_factor(text: str) -> float:
    """A factor such as a weight. Raises InvalidValue unless it is a number that check_factor() takes."""
    if _NUMBER.fullmatch(text.strip()):
        return check_factor(float(text))
    raise _not_a("number", text, _FACTOR_EXPECTED, "write a number such as 2 or 0.5")


def check_factor(factor: float) -> float:
    """``factor`` as a float. Raises InvalidValue unless it is above 0 and at most MAX_FACTOR."""
    if 0 < factor <= MAX_FACTOR:
        return float(factor)
    raise InvalidValue(
        f"{factor:g} is out of range: {_FACTOR_EXPECTED}", hint="write a positive number; 1 is the default"
    )


def check_slowdown(factor: float) -> float:
    """``factor`` as a float. Raises InvalidValue unless it is a factor of 1 or more."""
    if factor < 1:
        raise InvalidValue(
            f"{factor:g} is out of range: expected a slowdown of 1 or more", hint="write 1.1 for at most a tenth longer"
        )
    return check_factor(factor)


# --- what they share -----------------------------------------------------------------------------------------------


def _scaled(match: re.Match[str], factor: int) -> tuple[int, int, int]:
    """The number in ``match`` times ``factor``: the whole part, the rest, and what the rest is a part of."""
    fraction = match["fraction"] or ""
    digits = match["whole"] + fraction
    if len(digits) > 60:  # keep int() cheap
        return MAX_BYTES + 1, 0, 1
    whole, rest = divmod(int(digits) * factor, 10 ** len(fraction))
    return whole, rest, 10 ** len(fraction)


def _not_a(kind: str, text: str, expected: str, hint: str, *, negative: str | None = None) -> InvalidValue:
    stripped = text.strip()
    if not stripped:
        return InvalidValue(f"the {kind} is empty: {expected}", hint=hint)
    if _NEGATIVE.match(stripped):
        without = f"leave the limit out for {negative}" if negative else "leave out the minus sign"
        return InvalidValue(f"{_quoted(text)} is negative: {expected}", hint=without)
    if "," in stripped:
        hint = "write a point for decimals and nothing between thousands, such as 1.5"
    return InvalidValue(f"{_quoted(text)} is not a {kind}: {expected}", hint=hint)


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
