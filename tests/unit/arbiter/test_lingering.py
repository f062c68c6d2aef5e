"""Programs that do not stop in time, and what others say of themselves beside them."""

from __future__ import annotations

import pytest

from gemlet.simulate.counters import Counters
from gemlet.simulate.workload import ProgramSpec
from tests.unit.arbiter.open_device import MS, US, Shared


def lingering(scene, *names, **spec):
    """Clients 1, 2 ... of these groups, of whom all but the last do not stop, and the last one runs."""
    s = scene()
    for name in names:
        s.group(name, **spec)
    for number, name in enumerate(names, 1):
        s.client(number, name, wants=True, mps=bool(spec))
    while set(s.holders) != set(range(1, len(names) + 1)):
        s.to(s.ms + 1)
    return s


def at_work(s, client, ms, part=1.0):
    begin = s.ms
    for each in range(1, ms + 1):
        s.to(begin + each)
        s.progress(client, part * each)
        s.arbiter.tick(s.now)


@pytest.fixture
def modest(monkeypatch):
    """Who is silent says a hundredth of its work instead."""
    honest = Counters.tell

    def tell(self, work, launches):
        said = honest(self, work, launches)
        return said if said != (0, 0, 0, 0, 0) else (work // 100, launches, *[int(self._samples)] * 3)

    monkeypatch.setattr(Counters, "tell", tell)


@pytest.mark.parametrize("kernel", [50, 100, 300])
def test_who_says_little_does_not_make_one_with_long_kernels_pay(modest, kernel):
    """It paid for what it said, and the other one, whose kernels run on, for the rest: 0.24 to 0.34 of the device."""
    shared = Shared(({"min": 0.5}, ProgramSpec(kernel=kernel * MS)), ProgramSpec(kernel=200 * US, lie="silent"))
    assert shared.speed(0) >= 0.42


@pytest.mark.parametrize("jump", [(2**62, 2**62), (2**63 - 1, 2**62), (2**63 - 1, 1), (10**12, 1)])
def test_what_others_claim_beyond_their_time_is_not_so(scene, jump):
    """Sums of claims went around, so one that was stopped paid for all that another did."""
    s = lingering(scene, "stopped", "runs")
    s.group("liars")
    s.client(3, "liars")
    s.client(4, "liars")
    before = s.used("stopped")
    for client in (3, 4):
        s.arbiter.progress(client, *jump, 0, 0, 0)
    at_work(s, 2, 1000)
    assert s.used("stopped") - before < 20
    assert s.used("runs") == pytest.approx(1000, abs=25)


def test_what_a_part_of_the_device_did_counts_once_it_is_gone(scene):
    """Its work was subtracted when it went, so who lingers paid for all from then on."""
    s = lingering(scene, "stopped", "runs", sm=0.6)
    s.client(3, "runs", mps=True)
    at_work(s, 2, 1000)
    s.leave(2)
    s.request(3)
    before = s.used("stopped")
    at_work(s, 3, 1000)
    assert s.used("stopped") - before < 20


def test_what_those_that_are_stopped_leave_is_divided_among_the_others(scene):
    s = lingering(scene, "a", "b", "c", "long", "runs")
    begin, used = s.ms, {}
    for ms in range(1, 4001):
        s.to(begin + ms)
        s.progress(5, ms / 2)
        if ms % 100 == 0:  # it has kernels of 50 ms
            s.progress(4, ms / 2, launches=ms // 100)
        s.arbiter.tick(s.now)
        if ms == 2000:
            used = {name: s.used(name) for name in s.groups}
    assert s.used("long") - used["long"] == pytest.approx(1000, rel=0.1)
    assert s.used("runs") - used["runs"] == pytest.approx(1000, rel=0.25)
    assert sum(s.used(name) - used[name] for name in "abc") < 350


def test_one_that_is_stopped_beside_one_that_pauses_pays_no_more_than_that_one(scene):
    """It paid for the pauses of the other one, and then waited for as long as debts last."""
    s = lingering(scene, "stopped", "pauses")
    before = s.used("stopped")
    at_work(s, 2, 2000, 0.2)
    assert s.used("stopped") - before <= 1.02 * s.used("pauses")
