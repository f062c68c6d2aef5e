"""Arrivals: as many as the rate says, as regular as asked for."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.load import arrivals
from gemlet.load.arrivals import Scaled, Sinusoid, Steps


def drawn(rate: arrivals.Rate, spread: arrivals.Spread, until: float, variation: float = 1.0) -> list[float]:
    return list(arrivals.times(rate, arrivals.gaps(spread, variation, random.Random(7)), until))


def test_uniform_is_a_clock() -> None:
    assert drawn(arrivals.constant(4), "uniform", 1.01) == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    ("spread", "variation", "expected"), [("poisson", 1.0, 1.0), ("gamma", 4.0, 4.0), ("gamma", 0.5, 0.5)]
)
def test_gaps_vary_as_asked_for(spread: arrivals.Spread, variation: float, expected: float) -> None:
    gaps = list(islice(iter(arrivals.gaps(spread, variation, random.Random(1)), None), 200_000))
    assert mean(gaps) == pytest.approx(1, rel=0.05)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(expected, rel=0.05)


def test_steps_are_followed_exactly() -> None:
    times = drawn(Steps((0.0, 2.0, 3.0), (10.0, 0.0, 100.0)), "uniform", 4.0)
    assert sum(t < 2 + 1e-9 for t in times) == pytest.approx(20, abs=1)
    assert not [t for t in times if 2 + 1e-9 < t < 3 - 1e-9]
    assert sum(t > 3 for t in times) == pytest.approx(100, abs=1)


def test_a_sinusoid_is_followed() -> None:
    times = drawn(Sinusoid(mean=100, swing=1.0, period=4.0), "uniform", 4.0)
    assert len(times) == pytest.approx(400, abs=1)
    assert sum(t < 2 for t in times) == pytest.approx(200 + 400 / 3.141592653589793, abs=2)  # the high half


def test_the_rate_at_a_time() -> None:
    wave = Sinusoid(mean=10, swing=0.5, period=8)
    assert [round(wave.at(t), 6) for t in (0, 2, 4, 6)] == [10, 15, 10, 5]
    assert [Steps((0, 5), (1, 2)).at(t) for t in (0, 4.9, 5, 99)] == [1, 1, 2, 2]


def test_a_rate_of_nothing_ends() -> None:
    assert drawn(arrivals.constant(0), "poisson", 10) == []
    assert drawn(Sinusoid(mean=0, swing=0, period=1), "poisson", 10) == []
    assert drawn(Scaled(arrivals.constant(5), 0), "poisson", 10) == []


def test_the_same_seed_the_same_times() -> None:
    assert drawn(arrivals.constant(50), "poisson", 2) == drawn(arrivals.constant(50), "poisson", 2)


rates = st.one_of(
    st.lists(st.floats(0, 100), min_size=1, max_size=5).map(lambda values: arrivals.trace(values, 0.5)),
    st.builds(Sinusoid, mean=st.floats(0.1, 100), swing=st.floats(0, 1), period=st.floats(0.1, 10)),
)


@given(rates, st.sampled_from(["uniform", "poisson", "gamma"]))
def test_times_ascend_and_end(rate: arrivals.Rate, spread: arrivals.Spread) -> None:
    times = drawn(rate, spread, 3.0, 2.0)
    assert all(a <= b for a, b in pairwise(times))
    assert all(0 <= t < 3 for t in times)


def test_glets_flux_format() -> None:
    rate = arrivals.parse_flux("100\n\n250\n50\n")
    assert [rate.at(t) for t in (0, 19, 20, 40, 1000)] == [100, 100, 250, 50, 50]


def test_a_csv_of_rates() -> None:
    rates = arrivals.parse_csv("second, a, b\n0,1,2\n5,3,4\n")
    assert rates["a"] == Steps((0, 5), (1, 3))
    assert rates["b"] == Steps((0, 5), (2, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "first line"), ("second,a\n", "first line"), ("second,a\n0,1,2\n", "line 2"), ("second,a\n0,-1\n", "line 2"),
     ("second,a\n1,1\n", "first at 0"), ("second,a\n0,1\n0,2\n", "order"), ("second,a\n0,x\n", "line 2: 'x'")],
)  # fmt: skip
def test_bad_traces(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arrivals.parse_csv(text)


def test_bad_flux() -> None:
    with pytest.raises(ValueError, match="line 2"):
        arrivals.parse_flux("1\nnan\n")
    with pytest.raises(ValueError, match="steps"):
        arrivals.parse_flux("")
