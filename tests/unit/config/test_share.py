"""Shares: Gemini's observed values with the outcomes gemlet has chosen, and percentages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.config.share import check_share, format_share, parse_share
from gemlet.errors import InvalidValue


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (".5", 0.5), ("1e-1", 0.1), ("0.3", 0.3), ("0", 0.0), ("1", 1.0), ("1.0", 1.0), ("1.", 1.0), (" 0.3 ", 0.3),
        ("30%", 0.3), ("30 %", 0.3), ("100%", 1.0), ("0%", 0.0), ("33.3%", 0.333), ("12.5%", 0.125), (".5%", 0.005),
        ("29%", 0.29), ("58%", 0.58),  # 29 * 0.01 and 58 * 0.01 are other floats
    ],
)  # fmt: skip
def test_accepted(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # accepted unchecked by Gemini
        ("2", "more than 1", '"2%"'),
        ("-0.5", "not a share", "between 0 and 1"),
        ("nan", "not a share", "between 0 and 1"),
        ("0x1", "not a share", None),
        # stopped Gemini, and are still refused
        ("abc", "not a share", "between 0 and 1"),
        ("", "not a share", None),
        ("0,5", "not a share", "point for decimals"),
        # others
        ("30", "more than 1", '"30%"'),
        ("101%", "more than the whole", "100%"),
        ("-1%", "not a share", None),
        ("inf", "not a share", None),
        ("1e400", "not a share", None),
        ("1e300", "not between", None),
        ("%", "not a share", None),
        ("30%%", "not a share", None),
        ("1_0%", "not a share", None),
        ("٣٠%", "not a share", None),
    ],
)
def test_refused(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_share(text)
    assert message in caught.value.message or "not between" in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -0.001, 1.001, 30])
def test_numbers_are_checked_too(share: float) -> None:
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
