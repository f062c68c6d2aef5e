from __future__ import annotations

import pytest

from gemlet.cli.demo_measurement import Trace, worst_error

SECOND = 1_000_000_000


def steady(rate: float, seconds: float, *, step: float = 0.1) -> Trace:
    trace = Trace()
    for tick in range(round(seconds / step) + 1):
        trace.add(int(tick * step * SECOND), int(tick * step * rate))
    return trace


def test_rate():
    assert steady(1000, 3).rate() == pytest.approx(1000)
    assert steady(1000, 3).rate(last=1.0) == pytest.approx(1000)
    assert Trace().rate() == 0.0


def test_rate_without_the_slow_start():
    trace = Trace([0, SECOND, 2 * SECOND], [0, 10, 1010])
    assert trace.rate(after=1.0) == pytest.approx(1000)


def test_between_two_reports_by_the_straight_line():
    trace = Trace([0, SECOND], [0, 100])
    assert trace.count_at(SECOND // 4) == 25
    assert trace.count_at(-1) == 0
    assert trace.count_at(5 * SECOND) == 100


def test_a_steady_program_has_no_error():
    assert worst_error(steady(500, 5), 1000, 0.5) == pytest.approx(0, abs=0.01)


def test_one_bad_second_is_found_among_many():
    trace = steady(500, 5)
    stalled = Trace(
        [*trace.times, *(t + trace.last for t in trace.times[1:])],
        [*trace.counts, *(trace.counts[-1] + max(0, c - 300) for c in trace.counts[1:])],
    )
    assert worst_error(stalled, 1000, 0.5) == pytest.approx(0.3, abs=0.02)


def test_too_short_to_tell_is_not_good():
    assert worst_error(steady(500, 0.5), 1000, 0.5) == 1.0


def test_between():
    part = steady(1000, 5).between(SECOND, 2 * SECOND)
    assert part.first == SECOND
    assert part.last == 2 * SECOND
