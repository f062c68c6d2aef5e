"""Side by side or in turns: what two programs do to each other decides, as measured.

Under MPS any two are tried; without it those that leave the device waiting for their launches.
"""

from __future__ import annotations

import pytest

A, B, C = 1, 2, 3


class Programs:
    """What they did so far is in ``work`` (ms), by client; ``dry``: part of the looks at their queues that find them
    empty."""

    def tell(self):
        for number, work in self.work.items():
            self.s.progress(number, work, self.dry)

    def end_turns(self):
        """Whoever holds the token beyond its deadline gives it back and wants it again."""
        for number in list(self.s.holders):
            deadline = self.s.deadline(number)
            if deadline is not None and deadline <= self.s.ms:
                self.tell()
                self.s.stop(number)
                self.s.want(number)

    def run(self, until, step=0.5):
        while self.s.ms < until:
            self.end_turns()
            end = min(until, self.s.ms + step)
            self.advance(end - self.s.ms)
            self.tell()
            self.s.to(end)


class Pair(Programs):
    """Two saturating programs whose work goes at ``speeds`` when both run, at 1 when one does."""

    def __init__(self, scene, speeds, *, mps=True, dry=0.0, **groups):
        self.s = scene()
        self.dry = dry  # part of their looks at the queue that find it empty
        self.speeds = dict(zip((A, B), speeds, strict=True))
        self.work = {A: 0.0, B: 0.0}
        self.beside = 0.0  # ms both ran
        for number, name in ((A, "a"), (B, "b")):
            self.s.group(name, **groups.get(name, {}))
            self.s.client(number, name, mps=mps)
        for number in (A, B):
            self.s.want(number)

    def advance(self, length):
        both = {A, B} <= set(self.s.holders)  # there may be others than the two
        for number in set(self.s.holders) & {A, B}:
            self.work[number] += length * (self.speeds[number] if both else 1.0)
        self.beside += length * both

    def state(self):
        ((_, _, state, *_),) = self.s.arbiter.pairs()
        return state


def test_who_leaves_the_other_room_runs_beside_it(scene):
    p = Pair(scene, (0.9, 0.8))
    p.run(3000)
    assert p.state() == "together"
    assert p.beside > 2000
    assert p.work[A] + p.work[B] > 1.4 * 3000
    (row,) = p.s.arbiter.pairs()
    assert row[3:] == pytest.approx((0.9, 0.8), abs=0.05)
    assert all(p.s.holders[n]["beside"] for n in (A, B))


def test_who_fills_the_device_takes_turns(scene):
    p = Pair(scene, (0.5, 0.5))
    p.run(3000)
    assert p.state() == "apart"
    assert p.beside < 100
    p.run(3000 + 60_000, step=2)
    assert p.beside < 500  # trials become rare
    assert p.s.used("a") == pytest.approx(p.s.used("b"), rel=0.01)


def test_nobody_gets_less_than_in_turns(scene):
    p = Pair(scene, (0.6, 0.7), a={"min": 0.75}, b={"min": 0.25})  # 1.3 together, but "a" was promised .75
    p.run(3000)
    assert p.state() == "apart"
    assert p.work[A] / 3000 == pytest.approx(0.75, abs=0.02)


def test_a_program_that_changes_is_measured_anew(scene):
    p = Pair(scene, (0.9, 0.9))
    p.run(3000)
    p.speeds = {A: 0.4, B: 0.4}
    p.run(6000)
    assert p.state() == "apart"
    p.speeds = {A: 0.9, B: 0.9}
    p.run(20_000)
    assert p.state() == "together"


def test_the_classes_are_the_first_guess(scene):
    different = Pair(scene, (0.9, 0.9), a={"workload": "compute"}, b={"workload": "memory"})
    different.run(10)
    assert different.beside == pytest.approx(10, abs=1)
    alike = Pair(scene, (0.9, 0.9), a={"workload": "memory"}, b={"workload": "memory"})
    alike.run(1500)
    assert alike.beside == 0
    alike.run(5000)
    assert alike.state() == "together"  # a guess, no more


def test_not_without_mps(scene):
    p = Pair(scene, (0.9, 0.9), mps=False)
    p.run(1000)
    assert p.beside == 0
    assert p.s.arbiter.pairs() == []


def test_without_mps_two_that_wait_for_their_own_launches(scene):
    p = Pair(scene, (0.9, 0.95), mps=False, dry=0.6)
    p.run(3000)
    assert p.state() == "together"
    assert p.work[A] + p.work[B] > 1.5 * 3000


def test_without_mps_not_beside_one_that_keeps_the_device_busy(scene):
    p = Pair(scene, (0.9, 0.9), mps=False, dry=0.1)
    p.run(3000)
    assert p.beside == 0


def test_not_beside_who_is_in_a_hurry_and_would_be_slowed_down(scene):
    p = Pair(scene, (0.9, 1.0), a={"priority": "latency"})
    p.run(1000)
    assert p.beside < 200  # a trial


class Requests(Programs):
    """A latency client with requests of 6 ms every 20 ms, beside one that is always busy."""

    def __init__(self, scene, speeds, *, dry, mps=False, busy="best-effort", length=6.0):
        self.s = scene()
        self.length = length
        self.patience = 0.0  # ms for which it had nothing to do before it said so
        self.speeds = dict(zip((A, B), speeds, strict=True))
        self.dry = dry
        self.work = {A: 0.0, B: 0.0}
        self.beside = 0.0
        self.s.group("a", priority="latency")
        self.s.group("b", priority=busy)
        self.s.client(A, "a", mps=mps)
        self.s.client(B, "b", mps=mps)
        self.s.want(B)

    def run(self, requests):
        for _ in range(requests):
            self.request()
            self.pass_time(self.s.ms + 13.9)

    def request(self):
        s = self.s
        if A in s.parked:
            s.took(A)
        else:
            s.want(A)
        begun = self.work[A]
        while self.work[A] < begun + self.length:
            self.pass_time(s.ms + 0.1)
        self.patience = 2.0 if s.holders[A].get("patient") else 0.1
        self.pass_time(s.ms + self.patience, at_work={B})
        s.stop(A, "idle")

    def pass_time(self, until, step=0.1, at_work=frozenset({A, B})):
        s = self.s
        while s.ms < until - 1e-9:
            deadline = s.deadline(B) if B in s.holders else None
            if deadline is not None and deadline <= s.ms:
                self.tell()
                s.stop(B)
                s.want(B)
            both = {A, B} <= set(s.holders)
            length = min(step, until - s.ms)
            for number in set(s.holders) & at_work:
                self.work[number] += length * (self.speeds[number] if both else 1.0)
            self.beside += length * both
            self.tell()
            s.to(s.ms + length)


def test_requests_beside_one_that_leaves_gaps(scene):
    """Both are bound by their launches: the neighbour goes on while requests come, and they are not slower for it."""
    r = Requests(scene, (0.99, 0.9), dry=0.7)
    r.run(20)
    before = (r.work[B], r.s.ms, r.beside)
    r.run(20)
    assert r.beside - before[2] > 0.9 * 20 * 6
    assert (r.work[B] - before[0]) / (r.s.ms - before[1]) > 0.9


def test_requests_that_clearly_suffer_are_left_alone_at_once(scene):
    r = Requests(scene, (0.5, 0.9), dry=0.7)
    r.run(12)
    before = r.beside
    r.run(20)
    assert r.beside == before


def test_nobody_waits_for_more_of_short_requests(scene):
    """They are too short to tell whether a neighbour slows them down, and the device idles while they might go on."""
    r = Requests(scene, (1.0, 0.9), dry=0.7, mps=True, length=0.2)
    r.run(12)
    idle = 0.0
    for _ in range(20):
        r.request()
        idle += r.patience
        r.pass_time(r.s.ms + 10)
    assert idle == pytest.approx(20 * 0.1)


def test_requests_that_a_neighbour_would_slow_down_have_the_device_alone(scene):
    r = Requests(scene, (0.9, 0.9), dry=0.7)
    r.run(45)  # a trial, as requests differ, takes some time
    before = r.beside
    r.run(20)
    assert r.beside == before


def test_a_neighbour_with_whom_requests_go_well_need_not_submit_at_the_last_moment(scene):
    r = Requests(scene, (1.0, 0.9), dry=0.7)
    r.run(3)
    assert r.s.holders[B]["window"] == 40_000
    r.run(40)
    assert r.s.holders[B]["window"] == 400_000


def test_not_beside_who_wants_to_be_alone(scene):
    p = Pair(scene, (0.9, 0.9), b={"workload": "alone"})
    p.run(1000)
    assert p.beside == 0


def test_not_with_a_maximum(scene):
    """Charged half of the time, it would run for all of it."""
    p = Pair(scene, (0.9, 0.9), a={"max": 0.5})
    p.run(1000)
    assert p.beside == 0


def test_a_third_gets_its_share(scene):
    p = Pair(scene, (0.9, 0.9))
    p.run(1000)
    p.s.group("c")
    p.s.client(C, "c", wants=True, mps=True)
    before = {g: p.s.used(g) for g in "abc"}
    p.run(6000)
    got = {g: (p.s.used(g) - before[g]) / 5000 for g in "abc"}
    assert sum(got.values()) == pytest.approx(1, abs=0.02)  # side by side, each is charged its half
    assert got["c"] == pytest.approx(1 / 3, abs=0.05)


def test_idle_programs_do_not_make_trials_for_ever(scene):
    p = Pair(scene, (0.9, 0.9))
    p.run(200)
    p.s.arbiter.remove_client(B, p.s.now)
    p.s.holders.pop(B, None)
    p.s.client(B, "b", mps=True)
    for _ in range(100):
        p.s.want(B)
        if B in p.s.holders:
            p.s.to(p.s.ms + 1)
            p.s.stop(B, "idle")
        p.s.to(p.s.ms + 1)
    ((_, _, state, *_),) = p.s.arbiter.pairs()
    assert state in {"together", "apart"}


@pytest.mark.parametrize("now", [{"priority": "latency"}, {"workload": "alone"}])
def test_who_may_not_have_a_neighbour_any_more_has_none_soon(scene, now):
    p = Pair(scene, (0.9, 0.9))
    p.run(3000)
    assert p.state() == "together"
    p.s.group("a", **now)
    p.run(3005)
    before = p.beside
    p.run(3500)
    assert p.beside == before


class Several(Programs):
    """Programs that are always busy with launches: each goes at ``speed(n)`` when n run."""

    def __init__(self, scene, count, speed, *, dry=0.7, **groups):
        self.s = scene()
        self.speed, self.dry = speed, dry
        self.work = dict.fromkeys(range(1, count + 1), 0.0)
        self.at_a_time = dict.fromkeys(range(count + 1), 0.0)  # ms for which so many ran
        for number in self.work:
            name = f"g{number}"
            self.s.group(name, **groups.get(name, {}))
            self.s.client(number, name)
        for number in self.work:
            self.s.want(number)

    def advance(self, length):
        running = len(self.s.holders)
        for number in self.s.holders:
            self.work[number] += length * self.speed(running)
        self.at_a_time[running] += length

    def used(self):
        return {number: self.s.used(f"g{number}") for number in self.work}


def test_four_that_leave_gaps_run_at_a_time(scene):
    p = Several(scene, 4, lambda n: 1.0 if n < 4 else 0.9)
    p.run(5000)
    before, work = p.at_a_time[4], sum(p.work.values())
    p.run(10_000)
    assert p.at_a_time[4] - before > 0.8 * 5000
    assert sum(p.work.values()) - work > 3.2 * 5000
    used = p.used()
    assert sum(used.values()) == pytest.approx(10_000, rel=0.01)  # each pays its part of the time
    assert min(used.values()) > 0.9 * max(used.values())


def test_no_more_at_a_time_than_the_device_has_room_for(scene):
    """Each needs half of the device: two fit, three do not."""
    p = Several(scene, 3, lambda n: min(1.0, 2.0 / n), dry=0.5)
    p.run(5000)
    assert p.at_a_time[3] == 0
    assert p.at_a_time[2] > 2500


def test_who_has_less_than_in_turns_ends_the_company(scene):
    """Two go well, and four, for what nobody could foresee, do not."""
    p = Several(scene, 4, lambda n: 1.0 if n < 3 else 0.1, dry=0.8)
    p.run(5000)
    before = dict(p.at_a_time)
    p.run(25_000)
    many = sum(p.at_a_time[n] - before[n] for n in (3, 4))
    assert many < 0.05 * 20_000
    used = p.used()
    assert min(used.values()) > 0.9 * max(used.values())


def test_minima_hold_in_company(scene):
    p = Several(scene, 3, lambda n: 1.0 if n < 3 else 0.7, dry=0.7, g1={"min": 0.8})
    p.run(5000)
    before = dict(p.work)
    p.run(15_000)
    assert p.work[1] - before[1] >= 0.75 * 10_000


def test_one_of_a_company_may_die_or_get_another_spec(scene):
    p = Several(scene, 4, lambda n: 1.0)
    p.run(5000)
    assert len(p.s.holders) == 4
    p.s.group("g2", workload="alone")
    p.run(6000)
    assert not ({2} < set(p.s.holders))
    p.s.leave(3)
    del p.work[3]
    p.run(7000)
    p.s.group("g2")
    p.run(12_000)
    assert set(p.s.holders) == {1, 2, 4}


def test_a_neighbour_of_another_kind_makes_room_for_requests(scene):
    """What was good for both is no promise: who could not run beside them now must end at their arrival."""
    r = Requests(scene, (1.0, 0.9), dry=0.7)
    r.run(43)
    assert r.s.holders[B]["window"] == 400_000
    r.s.leave(B)
    r.s.client(B, "b", wants=True)  # another program of its group, whose queue is never empty
    r.tell = lambda: None
    before = r.beside
    r.run(10)
    assert r.beside == before
    assert r.s.holders[B]["window"] == 40_000


def test_who_is_good_at_trials_only_has_ever_fewer(scene):
    p = Pair(scene, (0.9, 0.9))
    while p.s.ms < 60_000:
        p.speeds = {A: 0.99, B: 0.01} if p.s.arbiter.pairs() and p.state() == "together" else {A: 0.9, B: 0.9}
        p.run(p.s.ms + 10, step=2)
    assert p.work[B] > 0.47 * 60_000


@pytest.mark.parametrize("leaves_after", [1, 20, 499])
@pytest.mark.parametrize("mps", [False, True])
def test_who_leaves_before_it_is_measured_gets_no_more(scene, mps, leaves_after):
    """It slows its neighbour down and has nothing more to do, it says, before the neighbour's turn ends."""
    p = Pair(scene, (0.9, 0.9), mps=mps, dry=0.6)
    p.run(3000)
    assert p.state() == "together"
    p.speeds = {A: 0.99, B: 0.01}
    before, since, s = p.work[B], p.s.ms, p.s
    for at in range(5000):
        p.run(since + at)
        if s.holders.get(A, {}).get("beside") and s.now - s.holders[A]["granted"] >= leaves_after * 1e6:
            p.tell()
            s.stop(A, "idle")
            s.want(A)
    assert p.work[B] - before > 0.42 * 5000  # of one turn it got little
