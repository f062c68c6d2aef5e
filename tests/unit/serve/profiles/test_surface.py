"""Latency between, below and beyond the anchors."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.profiles.surface import Fit, Surface, isotonic, monotone

GRID = [(0.25, 1, 8.0), (0.25, 4, 16.0), (0.5, 1, 4.0), (0.5, 4, 8.0), (1.0, 1, 3.0), (1.0, 4, 4.0)]


def test_an_anchor_keeps_its_value() -> None:
    surface = Surface(GRID)
    assert [surface.latency(s, b) for s, b, _ in GRID] == pytest.approx([ms for _, _, ms in GRID])


def test_between_anchors() -> None:
    surface = Surface(GRID)
    assert surface.latency(0.25, 2) == pytest.approx(8 + 8 / 3)  # a third of the way from batch 1 to 4
    assert 1 / surface.latency(0.75, 1) == pytest.approx((1 / 4 + 1 / 3) / 2)  # throughput is halfway


def test_far_from_any_anchor_a_part_of_the_time_is_divided_among_the_sms_and_a_part_is_not() -> None:
    ends = Surface([(1 / 16, 1, 18.0), (1.0, 1, 3.0), (1 / 16, 4, 34.0), (1.0, 4, 4.0)])
    for share in (1 / 16, 0.1, 0.25, 0.5, 0.9, 1.0):
        assert ends.latency(share, 1) == pytest.approx(2 + 1 / share)
        assert ends.latency(share, 4) == pytest.approx(2 + 2 / share)


def test_outside_of_what_was_measured() -> None:
    surface = Surface(GRID)
    assert surface.latency(0.125, 1) == pytest.approx(16.0)
    assert surface.latency(1.0, 5) == inf
    assert surface.latency(0.0, 1) == inf
    assert surface.latency(1.0, 0) == inf


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        ([], "no anchor"),
        ([(0.0, 1, 1.0)], "share"),
        ([(1.1, 1, 1.0)], "share"),
        ([(1.0, 0, 1.0)], "batch"),
        ([(1.0, 1, 0.0)], "latency"),
        ([(1.0, 1, -2.0)], "latency"),
        ([(1.0, 1, inf)], "latency"),
        ([(1.0, 1, float("nan"))], "latency"),
        ([(1.0, 1, 1.0), (1.0, 1, 2.0)], "twice"),
    ],
)
def test_anchors_that_make_no_sense(anchors: list[tuple[float, int, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Surface(anchors)


def test_the_fit_finds_the_law_it_was_made_from() -> None:
    def law(s: float, b: int) -> float:
        return (0.001 * b * b + 0.2 * b + 0.5) / (s + 0.1) + 0.3

    sparse = [(s, b, law(s, b)) for s, b in [(0.2, 1), (0.2, 8), (0.5, 4), (0.5, 32), (1.0, 1), (1.0, 16), (1.0, 32)]]
    fit = Fit(sparse)
    assert max(fit.errors) < 0.01
    surface = Surface(sparse)
    assert surface.latency(0.2, 32) == pytest.approx(law(0.2, 32), rel=0.05)


def test_isotonic_pools_what_falls() -> None:
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]


anchors = st.lists(
    st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]), st.sampled_from([1, 2, 4, 8]), st.floats(0.01, 1000)),
    min_size=1,
    max_size=20,
    unique_by=lambda point: point[:2],
)


@given(anchors)
def test_more_batch_is_never_faster_and_more_share_never_slower(points: list[tuple[float, int, float]]) -> None:
    surface = Surface(points)
    shares = [0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0]
    rows = [surface.row(share)[1:] for share in shares]
    for row in rows:
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(row))
    for less, more in pairwise(rows):
        assert all(a >= b * (1 - 1e-9) for a, b in zip(less, more, strict=True))


@given(st.lists(st.lists(st.floats(0.1, 100), min_size=3, max_size=3), min_size=1, max_size=4))
def test_levelling_twice_changes_nothing(grid: list[list[float]]) -> None:
    once = monotone(grid)
    assert monotone(once) == once
