"""Shares, sizes, durations and factors: what is accepted, what is refused and with which words, what is printed.

The tables of shares and sizes hold Gemini's observed values with the outcomes gemlet has chosen (docs/configuration.md
lists them).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.config.quantities import (
    MAX_BYTES,
    MILLISECOND,
    SECOND,
    check_factor,
    check_fraction,
    check_share,
    check_size,
    exact_percent,
    exact_size,
    format_share,
    format_size,
    parse_duration,
    parse_factor,
    parse_seconds,
    parse_share,
    parse_size,
)
from gemlet.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

GB, GIB = 10**9, 2**30


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (".5", 0.5), ("1e-1", 0.1), ("0.3", 0.3), ("0", 0.0), ("1", 1.0), ("1.0", 1.0), ("1.", 1.0), (" 0.3 ", 0.3),
        ("30%", 0.3), ("30 %", 0.3), ("100%", 1.0), ("0%", 0.0), ("33.3%", 0.333), ("12.5%", 0.125), (".5%", 0.005),
        ("29%", 0.29), ("58%", 0.58),  # 29 * 0.01 and 58 * 0.01 are other floats
    ],
)  # fmt: skip
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # accepted unchecked by Gemini
        ("2", "more than 1", '"2%"'),
        ("-0.5", "is negative", "minus sign"),
        ("nan", "not a share", "0.3 or 30%"),
        ("0x1", "not a share", None),
        # stopped Gemini, and are still refused
        ("abc", "not a share", "0.3 or 30%"),
        ("", "the share is empty", "0.3 or 30%"),
        ("0,5", "not a share", "point for decimals"),
        # others
        ("30", "more than 1", '"30%"'),
        ("101%", "more than the whole", "100%"),
        ("-1%", "is negative", None),
        ("inf", "not a share", None),
        ("1e400", "is not between 0 and 1", None),
        ("1e300", "is not between 0 and 1", None),
        ("%", "not a share", None),
        ("30%%", "not a share", None),
        ("1_0%", "not a share", None),
        ("٣٠%", "not a share", None),
    ],
)
def test_refused_shares(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_share(text)
    assert message in caught.value.message
    assert "expected" in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -0.001, 1.001, 30])
def test_numbers_are_checked_as_shares(share: float) -> None:
    with pytest.raises(InvalidValue):
        check_share(share)


@given(st.integers(0, 1000))
def test_a_percentage_is_the_float_of_its_decimal(tenths: int) -> None:
    assert parse_share(f"{tenths / 10}%") == tenths / 1000
    assert format_share(tenths / 1000) == f"{tenths / 10:g}%"


@given(st.floats(0, 1))
def test_no_share_prints_as_another_percent(share: float) -> None:
    text = format_share(share)
    if text == "<0.1%":
        assert 0 < share < 0.0005
    else:
        assert abs(parse_share(text) - share) <= 0.0005 + 1e-12


@pytest.mark.parametrize(
    ("text", "size"),
    [
        # read by Gemini, and with the same result
        ("2G", 2 * GB), ("2GB", 2 * GB), ("2 GB", 2 * GB), ("2Gi", 2 * GIB), ("2GiB", 2 * GIB),
        ("1024", 1024), ("1024B", 1024), ("0", 0), (" 2G", 2 * GB),
        ("3K", 3000), ("3KiB", 3072), ("3M", 3 * 10**6), ("3Mi", 3 * 2**20), ("3TB", 3 * 10**12), ("3TiB", 3 * 2**40),
        # stopped Gemini
        ("2g", 2 * GB), ("2gb", 2 * GB), ("2gib", 2 * GIB), ("2GIB", 2 * GIB), ("2G ", 2 * GB), ("\t2 g\n", 2 * GB),
        ("1.5G", 1_500_000_000), ("1.5GiB", 3 * 2**29), (".5K", 500), ("2.K", 2000), ("1.0", 1), ("0.0009765625KiB", 1),
        ("9223372036854775807", 2**63 - 1), ("8388607TiB", 8388607 * 2**40),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # stopped Gemini, and are still refused
        ("K", "not a size", "such as 8GiB"),
        ("-1", "is negative", "no limit"),
        ("2GiBs", "not a size", "such as 8GiB"),
        ("", "the size is empty", "such as 8GiB"),
        ("99999999999999999999", "2^63", "no limit"),
        # Gemini read these as 5
        ("5,B", "not a size", "point for decimals"),
        ("5,i", "not a size", "point for decimals"),
        # others
        ("0.1GiB", "whole number", "107374182 or 107374183"),
        ("1.5", "whole number", "1 or 2"),
        ("9223372036854775808", "2^63", None),
        ("8388608TiB", "2^63", None),
        ("9" * 5000, "2^63", None),
        (".", "not a size", None),
        ("0.5", "whole number of bytes", "such as 0.5GiB"),
        ("50%", "not a size", "not a part of the device"),
        ("1e9", "not a size", None),
        ("0x10", "not a size", None),
        ("1_000", "not a size", None),
        ("1 000", "not a size", None),
        ("٣G", "not a size", None),
        ("2PB", "not a size", None),
        ("nan", "not a size", None),
        ("8GiB\0", "not a size", None),
    ],
)
def test_refused_sizes(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_size(text)
    assert message in caught.value.message
    assert "expected" in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@given(st.integers(0, MAX_BYTES))
def test_exact_sizes_read_back(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(8 * GIB, "8GiB"), (2 * GB, "2GB"), (1025, "1025"), (0, "0"), (1536 * 2**20, "1536MiB")]
)
def test_exact_sizes_are_short(size: int, text: str) -> None:
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (512, "512 B"), (1024, "1 KiB"), (8 * GIB, "8 GiB"), (int(5.1 * GIB), "5.1 GiB"), (-GIB, "-1 GiB"),
        (1000 * 2**20, "1 GiB"), (999 * 2**20, "999 MiB"), (140 * GIB, "140 GiB"), (5000 * 2**40, "5000 TiB"),
    ],
)  # fmt: skip
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize("size", [-1, 2**63])
def test_integers_are_checked_as_sizes(size: int) -> None:
    with pytest.raises(InvalidValue):
        check_size(size)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1.5s", 3 * SECOND // 2), ("155 us", 155_000), ("20ms", 20 * MILLISECOND), (" 2m ", 120 * SECOND),
        ("1h", 3600 * SECOND), ("7ns", 7), ("0s", 0), (".5s", SECOND // 2), ("1.s", SECOND), ("0.1ms", 100_000),
        ("0.5ns", 1), ("0.4ns", 0), ("9223372036854775807ns", 2**63 - 1),
    ],
)  # fmt: skip
def test_durations(text: str, duration: int) -> None:
    assert parse_duration(text) == duration
    assert parse_seconds(text) == duration / SECOND


@pytest.mark.parametrize(("text", "factor"), [("2", 2.0), ("0.5", 0.5), ("1e3", 1000.0), (" 7. ", 7.0)])
def test_factors(text: str, factor: float) -> None:
    assert parse_factor(text) == factor


# What people type by mistake: (text, as a share, as a size, as a duration, as a factor); None is accepted.
ODD = [
    (
        "8",
        "8 is more than 1, the whole device: expected a number from 0 to 1, or a percentage such as 30%",
        None,
        "'8' is not a duration: expected a number with a unit, such as 20ms or 1.5s",
        None,
    ),
    (
        "8 gib",
        "'8 gib' is not a share: expected a number from 0 to 1, or a percentage such as 30%",
        None,
        "'8 gib' is not a duration: expected a number with a unit, such as 20ms or 1.5s",
        "'8 gib' is not a number: expected a positive number up to 1000000, such as 2",
    ),
    (
        "-1%",
        "'-1%' is negative: expected a number from 0 to 1, or a percentage such as 30%",
        "'-1%' is negative: expected bytes, or a number with a unit, such as 8GiB",
        "'-1%' is negative: expected a number with a unit, such as 20ms or 1.5s",
        "'-1%' is negative: expected a positive number up to 1000000, such as 2",
    ),
    (
        "nan",
        "'nan' is not a share: expected a number from 0 to 1, or a percentage such as 30%",
        "'nan' is not a size: expected bytes, or a number with a unit, such as 8GiB",
        "'nan' is not a duration: expected a number with a unit, such as 20ms or 1.5s",
        "'nan' is not a number: expected a positive number up to 1000000, such as 2",
    ),
    (
        "1e400GiB",
        "'1e400GiB' is not a share: expected a number from 0 to 1, or a percentage such as 30%",
        "'1e400GiB' is not a size: expected bytes, or a number with a unit, such as 8GiB",
        "'1e400GiB' is not a duration: expected a number with a unit, such as 20ms or 1.5s",
        "'1e400GiB' is not a number: expected a positive number up to 1000000, such as 2",
    ),
    (
        "150%",
        "'150%' is more than the whole device: expected at most 100%",
        "'150%' is not a size: expected bytes, or a number with a unit, such as 8GiB",
        "'150%' is not a duration: expected a number with a unit, such as 20ms or 1.5s",
        "'150%' is not a number: expected a positive number up to 1000000, such as 2",
    ),
    (
        "",
        "the share is empty: expected a number from 0 to 1, or a percentage such as 30%",
        "the size is empty: expected bytes, or a number with a unit, such as 8GiB",
        "the duration is empty: expected a number with a unit, such as 20ms or 1.5s",
        "the number is empty: expected a positive number up to 1000000, such as 2",
    ),
]


@pytest.mark.parametrize(("text", "share", "size", "duration", "factor"), ODD, ids=[repr(row[0]) for row in ODD])
def test_odd_input_reads_well(
    text: str, share: str | None, size: str | None, duration: str | None, factor: str | None
) -> None:
    parsers: list[Callable[[str], object]] = [parse_share, parse_size, parse_duration, parse_factor]
    for parse, message in zip(parsers, (share, size, duration, factor), strict=True):
        if message is None:
            parse(text)
            continue
        with pytest.raises(InvalidValue) as caught:
            parse(text)
        assert caught.value.message == message
        assert caught.value.hint


@pytest.mark.parametrize("text", ["20", "1.2.3s", ".s", "5 parsecs", "1e3s", "1_0s", "9" * 5000 + "s", "300 h" * 9])
def test_refused_durations(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_duration(text)
    assert "expected" in caught.value.message
    assert len(caught.value.message) < 120


def test_a_bare_number_is_told_which_unit_it_lacks() -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_duration("20")
    assert caught.value.hint == "add a unit: 20s"


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.1e6, math.nan, math.inf])
def test_numbers_are_checked_as_factors(factor: float) -> None:
    with pytest.raises(InvalidValue, match="expected a positive number"):
        check_factor(factor)


def test_a_fraction_of_the_multiprocessors_is_above_0() -> None:
    assert check_fraction(1) == 1.0
    with pytest.raises(InvalidValue, match="above 0"):
        check_fraction(0)


def test_percent_for_programs() -> None:
    assert [exact_percent(share) for share in (1.0, 0.3, 1 / 3, 0.125)] == ["100", "30", "33.3333", "12.5"]
