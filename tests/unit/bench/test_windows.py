"""Windows over completed work, and the fit of the moment at which a pace changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.windows import Completed, Line, settled, share_line, starts, switching_point, worst_of, worst_window


def steady(*paces: tuple[float, float], step: float = 0.001) -> Completed:
    """Work at each (until, pace) in turn, an entry each ``step`` seconds."""
    entries, t, work = [], 0.0, 0.0
    for until, pace in paces:
        while t < until - 1e-9:
            t += step
            work += step * pace
            entries.append((t, work))
    return Completed(entries)


def in_turns(share: float, cycle: float, begin: float, end: float, work: float = 0.0) -> Completed:
    """At full pace for ``share`` of each cycle, then not at all."""
    entries, t = [], begin
    while t < end:
        entries += [(t + share * cycle * i / 20, work + share * cycle * i / 20) for i in range(1, 21)]
        work += share * cycle
        t += cycle
    return Completed(entries)


def test_work_between_counts_what_was_complete_by_then() -> None:
    done = Completed([(0.1, 1.0), (0.2, 2.0), (0.4, 3.0)])
    assert done.until(0.05) == 0
    assert done.until(0.2) == 2
    assert done.between(0.1, 0.4) == 2
    assert done.total == 3
    assert Completed().until(1.0) == 0
    assert done.gaps()[0] == pytest.approx((0.2, 0.2))


def test_windows_fill_the_span_and_do_not_leave_it() -> None:
    begins = list(starts(0, 5))
    assert begins[0] == 0
    assert begins[-1] == pytest.approx(4.0)
    assert len(begins) == 81
    assert list(starts(0, 0.5)) == []


def test_the_worst_window_is_found_with_its_sign() -> None:
    done = steady((2, 0.5), (2.5, 0.2), (5, 0.5))
    worst = worst_of(done, 0.5, 1.0, 0, 5)
    assert worst.error == pytest.approx(-0.15, abs=0.002)
    assert 1.45 <= worst.begin <= 2.05
    assert worst_window(done, 0.5, 1.0, 0, 5) == pytest.approx(0.15, abs=0.002)
    assert worst_window(steady((5, 0.7)), 0.7, 1.0, 0, 5) == pytest.approx(0, abs=0.002)


def test_a_share_is_of_the_rate_alone() -> None:
    assert worst_window(steady((5, 0.9)), 0.5, 1.8, 0, 5) == pytest.approx(0, abs=0.002)


def test_no_window_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        worst_of(Completed(), 0.5, 1.0, 0, 0.5)


def test_settled_counts_from_the_change_until_it_holds_for_good() -> None:
    done = steady((2.0, 1.0), (2.3, 0.8), (5, 0.3))
    assert settled(done, 0.3, 1.0, 2.0, 5, window=0.2, tolerance=0.06) == pytest.approx(0.28, abs=0.02)
    assert settled(done, 0.3, 1.0, 2.5, 5, window=0.2, tolerance=0.06) == 0
    assert settled(done, 0.9, 1.0, 2.0, 5, window=0.2, tolerance=0.06) is None


def test_one_disturbance_later_unsettles() -> None:
    done = steady((2.0, 1.0), (3.0, 0.3), (3.2, 0.9), (5, 0.3))
    assert settled(done, 0.3, 1.0, 2.0, 5, window=0.2, tolerance=0.06) == pytest.approx(1.18, abs=0.03)


def test_a_line_needs_two_times() -> None:
    line = Line.through([(0, 1), (1, 3), (2, 5)])
    assert (line.slope, line.height) == pytest.approx((2, 1))
    for points in ([], [(1.0, 1.0)], [(1.0, 1.0), (1.0, 2.0)]):
        with pytest.raises(ValueError, match="two points"):
            Line.through(points)


@given(st.floats(1.8, 2.2), st.floats(0.005, 0.03), st.sampled_from([(0.75, 0.25), (0.5, 0.2), (0.25, 0.75)]))
def test_the_switching_point_is_found_in_turns_of_any_cycle(
    change: float, cycle: float, shares: tuple[float, float]
) -> None:
    before = in_turns(shares[0], cycle, 0, change)
    after = in_turns(shares[1], cycle, before.entries[-1][0] + cycle * (1 - shares[0]), 4.5, before.total)
    done = Completed(before.entries + after.entries)
    # The last cycle before the change is complete, so the change took effect less than a cycle after it.
    found = switching_point(done, (0.3, 1.7), (2.4, 4.4))
    assert change - 0.008 <= found <= change + cycle + 0.008


def test_work_that_goes_on_at_the_old_pace_delays_the_switching_point() -> None:
    assert switching_point(steady((2.0, 0.5), (4, 0.2)), (0.3, 1.9), (2.2, 4)) == pytest.approx(2.0, abs=0.003)
    assert switching_point(steady((2.06, 0.5), (4, 0.2)), (0.3, 1.9), (2.2, 4)) == pytest.approx(2.06, abs=0.003)


def test_no_change_has_no_switching_point() -> None:
    with pytest.raises(ValueError, match="did not change"):
        switching_point(steady((4, 0.5)), (0.3, 1.9), (2.2, 4))


def test_the_share_line_is_in_the_middle_of_its_windows() -> None:
    points = share_line(steady((1, 1.0), (2, 0.25)), 1.0, 2.0)
    assert points[0][0] == pytest.approx(0.05)
    assert points[0][1] == pytest.approx(1.0, abs=0.011)
    assert points[-1] == (pytest.approx(1.95), pytest.approx(0.25, abs=0.011))
