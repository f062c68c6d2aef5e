"""Quantiles are values that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quantiles import distribution, quantile

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=2000)


def test_nearest_rank() -> None:
    hundred = list(range(1, 101))
    assert [quantile(hundred, q) for q in (0, 0.5, 0.99, 0.999, 1)] == [1, 50, 99, 100, 100]
    assert quantile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@given(VALUES, st.integers(0, 1000))
def test_at_least_the_fraction_does_not_pass_it_and_none_smaller_will_do(values: list[float], thousandths: int) -> None:
    found = quantile(values, thousandths / 1000)
    assert found in values
    assert sum(v <= found for v in values) * 1000 >= thousandths * len(values)
    smaller = [v for v in values if v < found]
    assert not smaller or len(smaller) * 1000 < thousandths * len(values)


@given(VALUES)
def test_a_distribution_grows_and_ends_at_the_largest(values: list[float]) -> None:
    points = distribution(values)
    assert points[0][0] == 0
    assert points[-1] == (1.0, round(max(values), 1))
    assert points == sorted(points)
    assert len(points) <= 300
