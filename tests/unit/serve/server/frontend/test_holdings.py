"""One budget for all that clients make the server keep: who hoards goes, not who comes then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend.holdings import PACE, Holdings


class Holder:
    def __init__(self, peer=""):
        self.peer = peer
        self.evicted = 0

    def evict(self):
        self.evicted += 1


def test_who_held_much_for_long_goes_and_who_came_last_stays():
    now = [0.0]
    holdings = Holdings(100, lambda: now[0])
    hoards, small, good = Holder(), Holder(), Holder()
    holdings.hold(hoards, 60)
    holdings.hold(small, 10)
    now[0] = 5.0
    holdings.hold(good, 50)
    assert (hoards.evicted, small.evicted, good.evicted) == (1, 0, 0)
    assert holdings.total == 60


def test_who_has_many_that_cost_little_loses_one_of_them():
    now = [0.0]
    holdings = Holdings(100, lambda: now[0])
    good = Holder("good")
    holdings.hold(good, 15)
    for _ in range(20):  # ones that are refused, and come again at once
        now[0] += 0.1
        holdings.hold(Holder("many"), 10)
        now[0] += 0.1
    assert (good.evicted, holdings.evicted) == (0, 12)


def test_what_was_given_back_counts_no_more_but_its_time_does():
    now = [0.0]
    holdings = Holdings(100, lambda: now[0])
    first, second = Holder(), Holder()
    holdings.hold(first, 90)
    now[0] = 10.0
    holdings.hold(first, 40)
    holdings.hold(second, 60)
    now[0] = 11.0
    holdings.hold(second, 61)
    assert (first.evicted, second.evicted) == (1, 0)
    holdings.hold(second, 0)
    assert holdings.total == 0
    holdings.drop(second)
    assert holdings.total == 0


def test_one_that_alone_is_too_much_goes():
    holdings = Holdings(100, lambda: 0.0)
    one = Holder()
    holdings.hold(one, 101)
    assert (one.evicted, holdings.total) == (1, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.floats(0, 3)), max_size=40))
def test_the_budget_is_never_passed(steps):
    now = [0.0]
    holdings = Holdings(100, lambda: now[0])
    holders = [Holder() for _ in range(6)]
    for which, nbytes, later in steps:
        now[0] += later
        holdings.hold(holders[which], nbytes)
        assert 0 <= holdings.total <= 100
        assert holdings.total == sum(held.nbytes for held in holdings._held.values())
    assert holdings.evicted == sum(holder.evicted for holder in holders)


def test_an_answer_for_which_there_is_no_room_cuts_off_none_that_is_being_read():
    now = [0.0]
    holdings = Holdings(256 << 20, lambda: now[0])
    reads = Holder()
    holdings.check(200_000_000)
    holdings.hold(reads, 200_000_000)
    for left in range(200_000_000, 100_000_000, -10_000_000):
        holdings.hold(reads, left)
        now[0] += 0.9 * 10_000_000 / PACE
        with pytest.raises(Refusal) as refused:
            holdings.check(200_000_000)
        assert (refused.value.reason, refused.value.retry_s) == ("overload", 1)
    holdings.check(10_000_000)
    assert reads.evicted == 0
    now[0] += 10.0  # it stops
    holdings.check(200_000_000)
    assert reads.evicted == 1


def test_nobody_ends_for_an_answer_that_is_refused_all_the_same():
    now = [0.0]
    holdings = Holdings(100_000_000, lambda: now[0])
    slow, quick = Holder(), Holder()
    holdings.hold(slow, 10_000_000)
    now[0] = 10.0
    holdings.hold(quick, 60_000_000)
    with pytest.raises(Refusal):
        holdings.check(50_000_000)
    assert slow.evicted == 0
    holdings.check(40_000_000)
    assert (slow.evicted, quick.evicted) == (1, 0)
