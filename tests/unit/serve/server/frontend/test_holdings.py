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


def test_of_many_that_hold_little_several_go_at_once_because_looking_costs_time():
    looked = []

    class Small(Holder):
        @property
        def peer(self):
            looked.append(self)
            return "many"

        @peer.setter
        def peer(self, _peer):
            pass

    now = [0.0]
    holdings = Holdings(1000 * 64, lambda: now[0])
    for _ in range(1000):
        holdings.hold(Small(), 64)
    now[0] = 10.0
    assert not holdings.evicted
    good = Holder("good")
    holdings.hold(good, 100 * 64)
    assert 100 <= holdings.evicted < 120
    assert not good.evicted
    assert len(looked) < 8 * 3 * 1000


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


@pytest.mark.parametrize("leaves", [False, True], ids=["is evicted", "leaves before"])
def test_who_hoards_and_comes_again_costs_what_it_has_cost(leaves):
    """Connections that were new cost nothing yet: a large upload went for those of one who came again and again."""
    now = [0.0]
    holdings = Holdings(256, lambda: now[0])
    good, others = Holder("good"), []
    for step in range(400):  # of 50 ms
        now[0] += 0.05
        holdings.hold(good, (step + 1) / 10)
        assert not good.evicted, step
        others = [each for each in others if not each.evicted]
        if leaves:
            for each in others[:20]:
                holdings.drop(each)
            del others[:20]
        while len(others) < 300 and (not leaves or holdings.total < 250):
            others.append(Holder("bad"))
            holdings.hold(others[-1], 1)


def test_what_has_cost_is_forgotten_in_time(monkeypatch):
    monkeypatch.setattr("gemlet.serve.server.frontend.holdings.MOST_OWED", 3)
    now = [0.0]
    holdings = Holdings(100, lambda: now[0])
    for name in ("one", "two", "one", "three", "four"):
        holder = Holder(name)
        holdings.hold(holder, 50)
        now[0] += 10.0
        holdings.drop(holder)
    assert [round(holdings.owed(name, now[0])) for name in ("one", "two", "three", "four")] == [513, 0, 397, 500]
    once, again = Holder("four"), Holder("new")
    now[0] += 3600.0
    holdings.hold(again, 60)
    now[0] += 1.0
    holdings.hold(once, 60)
    assert (again.evicted, once.evicted) == (1, 0)
    whole = Holder("five")
    holdings.hold(whole, 10)
    now[0] += 10.0
    holdings.hold(whole, 0)
    assert not holdings.owed("five", now[0]), "it came, as it was to"
