"""Programs that run side by side and mean ill, or change, or end: what the others keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.machine import Machine


def test_a_minimum_is_not_made_up_for_at_a_neighbours_cost(scene):
    """Who was promised most of the device had all it wanted beside its neighbour: nothing is owed to it afterwards."""
    m = Machine(scene, mps=True)
    m.add(1, 0.5, min=0.8)
    m.add(2, 0.5, min=0.2)
    m.run(30_000)
    assert m.state(1, 2) == "together"
    m.s.group("g1", min=0.8, workload="alone")
    for second in range(31, 36):
        before = m.work[2]
        m.run(second * 1000)
        assert m.work[2] - before > 0.9 * 0.2 * 0.5 * 1000


def test_time_in_company_is_charged_as_in_turns(scene):
    m = Machine(scene)
    for number, least in ((1, 0.5), (2, 0.3), (3, 0.1)):
        m.add(number, 0.3, min=least)
    m.run(3000)
    before = {n: m.used(n) for n in m.need}
    m.run(13_000)
    assert len(m.s.holders) == 3
    used = {n: m.used(n) - before[n] for n in m.need}
    assert sum(used.values()) == pytest.approx(10_000, rel=0.005)
    assert [used[n] / 10_000 for n in (1, 2, 3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.01)


def test_a_drain_that_was_later_than_thought_is_nobodys_gift(scene):
    """Two that begin side by side behind a long tail pay for the time after it, no more and no less."""
    m = Machine(scene)
    m.add(1, 0.5)
    m.add(2, 0.5)
    m.run(3000)
    m.add(3, 1.0)
    m.late[3] = 30.0
    m.tail[3] = 0.1
    m.run(4000)
    before = sum(m.used(n) for n in m.need)
    m.run(14_000)
    assert m.state(1, 2) == "together"
    assert sum(m.used(n) for n in m.need) - before == pytest.approx(10_000, rel=0.01)


def test_what_is_in_flight_when_one_leaves_is_charged_once(scene):
    """It runs beside those who stay."""
    m = Machine(scene)
    for number in (1, 2, 3):
        m.add(number, 0.3)
        m.tail[number] = 2.0
    m.add(4, 1.0)
    m.run(5000)
    before = {n: m.used(n) for n in m.need}
    m.run(15_000)
    assert 3 in m.crowds
    used = [(m.used(n) - before[n]) / 10_000 for n in m.need]
    assert sum(used) == pytest.approx(1, abs=0.005)
    assert used == pytest.approx([0.25] * 4, abs=0.01)


def test_who_does_not_stop_pays_for_all_it_takes(scene):
    """Also with others that do not: it is no company that they were let into."""
    m = Machine(scene)
    for number in (1, 2, 3):
        m.add(number, 0.3)
    m.run(5000)
    assert len(m.s.holders) == 3
    m.deaf |= {1, 2}
    m.s.group("g4", workload="alone")
    m.add(4, 1.0)
    m.run(5600)  # all should have stopped by now
    before = {n: m.used(n) for n in (1, 2)}
    m.run(6600)
    assert [m.used(n) - before[n] for n in (1, 2)] == pytest.approx([1000, 1000], rel=0.01)


@pytest.mark.parametrize("burst", [(2.0, 4.0), (5.0, 3.0), (25.0, 5.0)])
def test_who_pauses_is_not_slowed_down_for_long_either(scene, burst):
    """Neither is ever stopped in the middle of its work, so there is only the turn as a whole to judge by."""
    m = Machine(scene)
    m.add(1, 0.5, min=0.8)
    m.add(2, 0.5)
    m.run(3000)
    assert m.state(1, 2) == "together"
    m.pauses(1, *burst)
    m.pauses(2, 5.0, 2.1)
    m.selfish[2] = 0.75
    m.run(3500)
    assert m.state(1, 2) != "together"


def test_a_program_that_has_become_heavier_keeps_its_minimum(scene):
    """What it does alone is not what was measured: half of the device is more than it ever had, and not enough."""
    m = Machine(scene, mps=True)
    m.add(1, 0.3, min=0.8)
    m.add(2, 0.7)
    m.run(4000)
    assert m.state(1, 2) == "together"
    m.need = {1: 1.0, 2: 1.0}
    m.run(7000)
    before = m.work[1]
    m.run(12_000)
    assert (m.work[1] - before) / 5000 > 0.78


def test_ever_new_neighbours_that_are_good_at_trials_only(scene):
    """Each has a group of its own, of which nothing is known."""
    m = Machine(scene)
    m.add(1, 0.5, min=0.5)
    m.run(1000)
    number, before = 1, m.work[1]
    while m.s.ms < 41_000:
        number += 1
        m.add(number, 0.5)
        while m.s.ms < 41_000 and m.state(1, number) != "together":
            m.run(m.s.ms + 5)
        m.selfish[number] = 0.97
        while m.s.ms < 41_000 and m.state(1, number) == "together":
            m.run(m.s.ms + 5)
        m.leave(number)
        m.s.arbiter.remove_group(m.s.groups[f"g{number}"], m.s.now)
    assert (m.work[1] - before) / 40_000 > 0.9 * 0.25


def test_a_company_that_requests_interrupt_comes_together_again(scene):
    """Each is told to go at another moment, and the last of them was not alone with the device all the while."""
    m = Machine(scene)
    m.add(9, 1.0, wants=False, priority="latency", workload="alone", min=0.1)
    for number in (1, 2, 3, 4):
        m.add(number, 0.24)
    m.run(5000)
    m.pauses(9, 0.5, 10.0)
    m.returns[9] = 5001.0
    m.run(6000)
    before = sum(m.work[n] for n in (1, 2, 3, 4))
    m.run(16_000)
    assert (sum(m.work[n] for n in (1, 2, 3, 4)) - before) / 10_000 > 0.75


def requests_beside_two(scene, need):
    """Client 9's requests of 6 ms, beside 1 and 2, which need so much of the device each; after 5 s."""
    m = Machine(scene)
    m.add(9, 0.3, wants=False, priority="latency", min=0.1)
    m.add(1, need)
    m.add(2, need)
    m.pauses(9, 6 * 0.3, 14.0)
    m.returns[9] = 1.0
    m.run(5000)
    return m


def test_requests_slowed_down_a_little_by_company_have_none(scene):
    """Neither neighbour alone does that, and no request is long enough to tell."""
    m = requests_beside_two(scene, 0.3)
    assert m.state(9, 1) == m.state(9, 2) == "together"
    assert m.most_beside(9, 5200) == 3
    m.crowded[9] = 0.87
    m.run(6000)
    assert m.most_beside(9, 7000) < 3


def test_neighbours_whose_company_requests_cannot_join_keep_little_in_flight(scene):
    """It goes well with each of them, but not with both at a time: both must stop when it comes."""
    m = requests_beside_two(scene, 0.45)
    assert m.state(9, 1) == m.state(9, 2) == m.state(1, 2) == "together"
    seen = set()
    while m.s.ms < 6000:
        m.run(m.s.ms + 0.25)
        if {1, 2} == set(m.s.holders):
            seen |= {m.s.holders[n]["window"] for n in (1, 2)}
    assert seen == {40_000}


def test_who_says_it_always_has_less_than_in_turns_keeps_itself_out_only(scene):
    m = Machine(scene)
    for number in (1, 2, 3, 4):
        m.add(number, 0.25)
    m.run(5000)
    assert len(m.s.holders) == 4
    m.says[1] = 0.1  # of its work, beside others
    m.run(10_000)
    together = sum(len({2, 3, 4} & set(m.s.holders)) == 3 for _ in range(1000) if m.run(m.s.ms + 10) is None)
    assert together > 650


def test_more_empty_looks_than_looks_make_no_room(scene):
    m = Machine(scene)
    for number in (1, 2, 3, 4):
        m.add(number, 0.6)
    m.boasts[1] = 1e9
    m.run(10_000)
    assert 1 < max(m.crowds) <= 3  # as if it needed nothing of the device itself


class Villain:
    """Well-behaved at times, and at times takes ``greed`` of the device, leaving after ``stays`` ms for a moment."""

    def __init__(self, greed, stays, away):
        self.greed, self.stays, self.away = greed, stays, away

    def act(self, m, number, well):
        if well:
            m.selfish.pop(number, None)
            m.bursts.pop(number, None)
            return
        m.selfish[number] = self.greed
        if self.stays:
            m.pauses(number, self.stays * self.greed, self.away)


@settings(max_examples=6, deadline=None)
@given(
    mps=st.booleans(),
    villain=st.builds(
        Villain,
        st.sampled_from([0.5, 0.8, 0.97]),
        st.sampled_from([None, 1, 20, 100, 400]),
        st.sampled_from([2.05, 30]),
    ),
    well=st.lists(st.booleans(), min_size=4, max_size=4),
    every=st.sampled_from([20, 100, 1000, 4000]),
    others=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.2]),
            st.sampled_from([0.2, 0.3, 0.5, 0.7, 1.0]),
            st.sampled_from([None, None, (4, 5), (20, 3), (100, 20)]),
            st.sampled_from([1.0, 1.0, 2.5]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_nobody_is_worse_off_than_if_all_took_turns(scene_class, mps, villain, well, every, others):  # noqa: PLR0917
    """Whatever one of them does, whoever pauses, and whoever needs more of the device than at first."""
    done, charged = [], []
    for workload in ("unknown", "alone"):
        m = Machine(scene_class, mps=mps)
        m.add(1, 0.5, workload=workload)
        for number, (least, need, _, _) in enumerate(others, 2):
            m.add(number, need, min=least, workload=workload)
        m.run(3000)
        for number, (_, _, bursts, heavier) in enumerate(others, 2):
            m.need[number] = min(1.0, m.need[number] * heavier)
            if bursts:
                m.pauses(number, bursts[0] * m.need[number], bursts[1])
        before = m.work.copy()
        for turn in range(12_000 // every):
            villain.act(m, 1, well[turn % len(well)])
            m.run(m.s.ms + every, step=1)
        done.append([m.work[n] - before[n] for n in range(2, len(others) + 2)])
        charged.append(sum(m.used(n) for n in m.need) / m.s.ms)
    assert max(charged) <= 1.005
    for beside, turns in zip(*done, strict=True):
        assert beside >= 0.88 * turns, (done, m.s.arbiter.pairs())
