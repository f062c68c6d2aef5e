"""Predictions for batches, and how much longer they take: learned from measured ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch.expectation import BATCHES, MARGIN_BATCHES, Expectation
from gemlet.serve.dispatch.gpu_lets import Assignment, GpuLetState
from gemlet.serve.profiles.profile import ModelProfile
from gemlet.serve.profiles.variation import Recent

PROFILE = ModelProfile(latency=((1.0, 1, 10.0), (1.0, 8, 80.0)))


def place(slowdown: float = 1.0) -> Assignment:
    return Assignment(GpuLetState(0, 0, 1.0), "a", 4, 100.0, slowdown)


def profiled() -> Expectation:
    expectation = Expectation()
    expectation.know("a", PROFILE)
    return expectation


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(1, 12), st.sampled_from((0.0, 0.5, 0.95, 1.0))
)
def test_quantiles_are_nearest_ranks_of_the_last_numbers(numbers: list[float], limit: int, part: float) -> None:
    recent = Recent(limit)
    for number in numbers:
        recent.add(number)
    last = sorted(numbers[-limit:])
    found = recent.quantile(part)
    assert len(recent) == len(last)
    assert sum(number <= found for number in last) >= part * len(last) - 1e-9
    assert sum(number < found for number in last) <= part * len(last) + 1e-9
    while recent:
        recent.forget()


def test_the_same_share_of_another_kind_of_device_takes_its_own_time() -> None:
    slow = ModelProfile(latency=((1.0, 1, 30.0), (1.0, 8, 240.0)))
    expectation = Expectation()
    expectation.kinds = {0: "fast", 1: "slow", 2: "unknown"}
    expectation.know("a", {"fast": PROFILE, "slow": slow})

    def on(gpu: int) -> Assignment:
        return Assignment(GpuLetState(gpu, 0, 1.0), "a", 4, 100.0, 1.0)

    assert [expectation(on(gpu), 1) for gpu in range(3)] == [10.0, 30.0, 0.0]
    for _ in range(BATCHES + 1):
        expectation.observe(on(1), 1, 60.0)
    assert [expectation(on(gpu), 1) for gpu in range(3)] == [10.0, pytest.approx(60.0), 0.0]
    expectation.know("a", None)
    assert expectation(on(0), 1) == 0.0


def test_a_device_as_its_profile_has_no_margin_and_no_correction() -> None:
    expectation = profiled()
    assert expectation.margin(place()) == 0
    for rows in (1, 4, 8, 2):
        expectation.observe(place(), rows, 10.0 * rows)
    assert expectation(place(), 4) == pytest.approx(40.0)
    assert expectation.margin(place()) == 0


def test_jitter_becomes_the_margin_and_slowness_the_correction() -> None:
    expectation = profiled()
    chance = random.Random(1)
    for _ in range(300):
        expectation.observe(place(), 4, 60.0 + chance.uniform(-3.0, 3.0))
    assert expectation(place(), 4) == pytest.approx(60.0, abs=2)
    assert expectation.margin(place()) == pytest.approx(3.0, abs=2)


def test_pauses_of_the_machine_change_little() -> None:
    expectation = profiled()
    for number in range(MARGIN_BATCHES):
        expectation.observe(place(), 4, 500.0 if number % 30 == 20 else 40.0)
        assert expectation(place(), 4) == pytest.approx(40.0)
    assert expectation.margin(place()) < 5


def test_a_margin_ends_when_the_jitter_does() -> None:
    expectation = profiled()
    for number in range(MARGIN_BATCHES):
        expectation.observe(place(), 4, 40.0 + 10 * (number % 2))
    assert expectation.margin(place()) > 3
    for _ in range(MARGIN_BATCHES + BATCHES):
        expectation.observe(place(), 4, 40.0)
    assert expectation.margin(place()) < 0.5


def test_a_device_that_became_slower_is_known_after_few_batches() -> None:
    expectation = profiled()
    for _ in range(50):
        expectation.observe(place(), 4, 40.0)
    for _ in range(BATCHES // 2 + 1):
        expectation.observe(place(), 4, 100.0)
    assert expectation(place(), 4) == pytest.approx(100.0)


def test_without_a_profile_the_first_of_a_size_says_nothing_about_jitter() -> None:
    expectation = Expectation()
    for rows in (1, 1, 1, 8, 8, 8):
        expectation.observe(place(), rows, 10.0 * rows)
    assert expectation(place(), 8) == pytest.approx(80.0)
    assert expectation.margin(place()) == 0


def test_an_estimate_that_keeps_all_out_is_lowered_until_it_lets_one_in() -> None:
    expectation = profiled()
    for _ in range(100):
        expectation.observe(place(), 1, 40.0)
    assert expectation(place(), 1) > 35
    for _ in range(BATCHES):
        expectation.relax(place())
    assert expectation(place(), 1) == pytest.approx(10.0)


def test_without_a_profile_what_keeps_all_out_is_forgotten() -> None:
    expectation = Expectation()
    for _ in range(100):
        expectation.observe(place(), 1, 40.0)
    assert expectation(place(), 1) == 40.0
    for _ in range(BATCHES):
        expectation.relax(place())
    assert expectation(place(), 1) == 0.0


def test_a_device_that_is_faster_than_its_profile_is_not_taken_for_slower_by_relaxing() -> None:
    expectation = profiled()
    for _ in range(10):
        expectation.observe(place(), 1, 5.0)
    expectation.relax(place())
    assert expectation(place(), 1) == pytest.approx(5.0)


def test_a_model_that_is_loaded_anew_is_learned_anew() -> None:
    expectation = profiled()
    for number in range(20):
        expectation.observe(place(), 4, 70.0 + number % 3)
    expectation.know("a", PROFILE)
    assert (expectation(place(), 4), expectation.margin(place())) == (pytest.approx(40.0), 0)
