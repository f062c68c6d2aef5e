"""Sizes: Gemini's observed table with the outcomes gemlet has chosen (docs/configuration.md lists them)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.config.size import MAX_BYTES, check_size, exact_size, format_size, parse_size
from gemlet.errors import InvalidValue

GB, GIB = 10**9, 2**30


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
def test_accepted(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # stopped Gemini, and are still refused
        ("K", "not a size", "such as 8GiB"),
        ("-1", "not a size", "not negative"),
        ("2GiBs", "not a size", "such as 8GiB"),
        ("", "not a size", "such as 8GiB"),
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
def test_refused(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_size(text)
    assert message in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@given(st.integers(0, MAX_BYTES))
def test_exact_text_reads_back(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(8 * GIB, "8GiB"), (2 * GB, "2GB"), (1025, "1025"), (0, "0"), (1536 * 2**20, "1536MiB")]
)
def test_exact_text_is_short(size: int, text: str) -> None:
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (512, "512 B"), (1024, "1 KiB"), (8 * GIB, "8 GiB"), (int(5.1 * GIB), "5.1 GiB"), (-GIB, "-1 GiB"),
        (1000 * 2**20, "1 GiB"), (999 * 2**20, "999 MiB"), (140 * GIB, "140 GiB"), (5000 * 2**40, "5000 TiB"),
    ],
)  # fmt: skip
def test_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize("size", [-1, 2**63])
def test_integers_are_checked_too(size: int) -> None:
    with pytest.raises(InvalidValue):
        check_size(size)
