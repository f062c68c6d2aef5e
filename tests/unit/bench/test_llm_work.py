"""What a program reports of a window, and rates over it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.llm.programs import client_work
from bench.llm.work import Request, Work, identical, settled_within, slowest


def steady(*paces: tuple[float, float], step: float = 0.01) -> Work:
    """Units at each (until, units a second) in turn, one entry each ``step`` seconds."""
    work = Work(paces[-1][0])
    at, done = 0.0, 0.0
    for until, pace in paces:
        while at < until - 1e-9:
            at += step
            done += step * pace
            work.times.append(at)
            work.done.append(done)
    return work


def test_a_report_is_read_with_its_requests_and_answers() -> None:
    request = {"t": 500_000_000, "done": 1.0, "arrived": 100_000_000, "ttft_ms": 20.0, "prefill_ms": 15.0,
               "token_ms": [10.0, 12.0]}  # fmt: skip
    work = Work.read([json.dumps(request), json.dumps({"end": True, "digests": ["ab"]})], 2.0)
    assert work.times == [0.5]
    assert work.requests == [Request(0.1, 0.5, 20.0, 15.0, (10.0, 12.0))]
    assert work.requests[0].per_token_ms == 11.0
    assert work.requests[0].served_s == pytest.approx(0.037)
    assert work.busy() == pytest.approx(0.0185)
    assert work.digests == ["ab"]


def test_a_report_without_its_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no end"):
        Work.read([json.dumps({"t": 1, "done": 1.0})], 1.0)


def test_the_unit_under_way_counts_in_part() -> None:
    work = Work(2.0, [1.0, 2.0], [10.0, 30.0])
    assert work.until(0.5) == 5.0
    assert work.until(1.5) == 20.0
    assert work.until(9.0) == 30.0
    assert work.rate(0.5, 1.5) == 15.0
    assert Work(1.0).rate(0.0, 1.0) == 0.0


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_work_only_grows_and_is_never_more_than_was_done(gaps: list[float], part: float) -> None:
    times = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    work = Work(times[-1], times, [float(i + 1) for i in range(len(times))])
    middle = part * times[-1]
    assert 0.0 <= work.until(middle) <= work.until(times[-1]) == len(times)
    assert work.until(middle) == pytest.approx(work.until(middle / 2) + middle / 2 * work.rate(middle / 2, middle)
                                               if middle else 0.0)  # fmt: skip


def test_the_worst_second_is_the_slowest_one() -> None:
    work = steady((2.0, 100.0), (3.0, 40.0), (5.0, 100.0))
    assert work.worst_second(0.0, 5.0) == pytest.approx(40.0)
    assert work.worst_second(0.0, 2.0) == pytest.approx(100.0)
    assert work.pace()[4:6] == [40.0, 40.0]


def test_answers_are_compared_as_far_as_both_came() -> None:
    assert identical(["a", "b"], ["a", "b", "c"])
    assert not identical(["a", "x"], ["a", "b", "c"])
    assert identical([], ["a"])


def test_a_promise_holds_from_the_last_window_that_missed_it_on() -> None:
    late = steady((1.0, 100.0), (1.5, 10.0), (5.0, 100.0))
    held = settled_within(late, 90.0, 1.0, 5.0)
    assert held is not None
    assert 0.45 <= held <= 0.55
    assert settled_within(late, 90.0, 2.0, 5.0) == 0.0
    assert settled_within(late, 190.0, 2.0, 5.0) is None


def test_the_slowest_window_is_what_a_program_always_does() -> None:
    work = steady((2.0, 100.0), (2.5, 40.0), (5.0, 100.0))
    assert slowest(work, 0.0, 5.0) == pytest.approx(40.0, rel=0.2)
    assert slowest(work, 0.0, 1.9) == pytest.approx(100.0, rel=0.1)
    assert slowest(work, 0.0, 0.1) == 0.0


def test_the_log_of_the_benchmarks_own_client_is_work_too() -> None:
    work = client_work("1000000 1000000\n2000000 1500000\n", 1.0)
    assert work.times == [0.001, 0.002]
    assert work.done == [0.001, 0.0015]
