"""What is kept free for who comes as regularly as a clock is not taken from what others were promised."""

from __future__ import annotations

import pytest

BUSY = 1000


class Clocks:
    """Latency groups that come with ``period`` ms for ``work`` ms, evenly staggered, beside a saturating program whose
    turns end a kernel's length before their deadline."""

    def __init__(self, scene, count, *, period=5.0, work=0.05, kernel=0.0, mps=False, sm=1.0, busy=None):
        self.s = scene()
        self.kernel = kernel
        self.events = []
        for n in range(count):
            self.s.group(f"clock{n}", priority="latency", sm=sm)
            self.s.client(n, f"clock{n}", mps=mps)
            self.events.append((1 + n * period / count, n))
        self.period, self.work = period, work
        self.s.group("busy", **(busy or {}))
        self.s.client(BUSY, "busy", wants=True, mps=mps)

    def run(self, until):
        s = self.s
        while True:
            ends = []
            if BUSY in s.holders:
                holder = s.holders[BUSY]
                deadline = s.deadline(BUSY)
                if holder["revoked"]:
                    ends.append((s.ms, BUSY))
                elif deadline is not None:
                    length = deadline - holder["granted"] / 1e6
                    whole = self.kernel * max(1, int(length / self.kernel)) if self.kernel else length
                    ends.append((max(s.ms, holder["granted"] / 1e6 + whole), BUSY))
            at, who = min(self.events + ends)
            if at >= until:
                s.to(until)
                return
            if at > s.ms:
                step = min(at, max(s.ms, s.arbiter.next_event() / 1e6))
                s.to(step)
                if step < at:
                    continue
            if who == BUSY:
                s.stop(BUSY, "revoked" if s.holders[BUSY]["revoked"] else "deadline")
                s.request(BUSY)
                continue
            self.events.remove((at, who))
            if who in s.holders:  # its work is done
                s.stop(who, "idle")
                start = at - self.work
                self.events.append((start + self.period, who))
            elif who in s.parked:
                s.took(who)
                self.events.append((at + self.work, who))
            else:
                s.request(who)
                self.events.append((at + self.work, who))


def test_many_clocks_do_not_starve_a_group(scene):
    c = Clocks(scene, 12)
    c.run(2000)
    before = c.s.used("busy")
    c.run(3000)
    assert c.s.used("busy") - before > 300


def test_a_minimum_holds_beside_a_clock(scene):
    c = Clocks(scene, 1, period=10.0, work=0.2, kernel=4.0, busy={"min": 0.9})
    c.run(1000)
    before = c.s.used("busy")
    c.run(3000)
    assert (c.s.used("busy") - before) / 2000 > 0.87


def test_nothing_is_kept_free_for_a_client_that_fits_beside(scene):
    c = Clocks(scene, 1, period=10.0, work=0.2, mps=True, sm=0.3, busy={"sm": 0.7})
    c.run(1000)
    before = c.s.used("busy")
    c.run(2000)
    assert c.s.used("busy") - before == pytest.approx(1000, abs=1)
