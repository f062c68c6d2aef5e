from __future__ import annotations

import tracemalloc

import pytest

from gemlet.daemon.events import LOGGED_IN_ALL, LOGGED_PER_MINUTE, EventRing
from gemlet.daemon.logs import Limiter
from gemlet.daemon.native import DeviceUsage, GroupUsage, Snapshot
from gemlet.daemon.recent_usage import RecentUsage

UUID = bytes(16)
KEY = (UUID, "g")


def at(seconds: float, used: float, name: str = "g") -> Snapshot:
    group = GroupUsage(name=name, used_ns=int(used * 1e9), memory_used=5)
    return Snapshot(devices=(DeviceUsage(uuid=UUID, groups=(group,)),), now_ns=int(seconds * 1e9))


def filled(*points: tuple[float, float]) -> RecentUsage:
    recent = RecentUsage()
    for seconds, used in points:
        recent.add(at(seconds, used))
    return recent


def test_share_over_a_window():
    recent = filled(*[(tick / 10, tick / 10 * 0.3) for tick in range(101)])
    assert recent.share(KEY, 1.0) == pytest.approx(0.3)
    assert recent.shares(KEY) == {window: pytest.approx(0.3) for window in ("1s", "10s", "60s")}


def test_the_window_forgets():
    recent = filled((0, 0), (10, 10), (11, 10))
    assert recent.share(KEY, 1.0) == 0.0
    assert recent.share(KEY, 60.0) == pytest.approx(10 / 11)


def test_what_was_used_while_nobody_looked_is_known():
    recent = filled((0, 0), (1, 0.5), (1001, 500.5))
    assert recent.shares(KEY) == {window: pytest.approx(0.5) for window in ("1s", "10s", "60s")}


@pytest.mark.parametrize("jump", [-1000.0, -1.0])
def test_a_clock_that_goes_back_forgets_nothing(jump):
    recent = filled(*[(1000 + tick / 10, tick / 10 * 0.3) for tick in range(101)])
    for tick in range(1, 11):
        recent.add(at(1010 + jump + tick / 10, 3 + tick / 10 * 0.3))
    assert recent.share(KEY, 1.0) == pytest.approx(0.3)
    assert recent.share(KEY, 10.0) == pytest.approx(0.3, abs=0.01)
    assert len(list(recent.since(10.0))) > 90


def test_unknown_until_there_are_two_samples():
    assert RecentUsage().share(KEY, 1.0) is None
    assert filled((0, 0)).share(KEY, 1.0) is None


def test_a_group_that_came_later_or_came_again():
    recent = RecentUsage()
    recent.add(at(0, 0, "other"))
    recent.add(at(1, 0))
    recent.add(at(2, 0.5))
    assert recent.share(KEY, 60.0) == pytest.approx(0.5)


def test_a_device_whose_groups_come_and_go_is_never_more_than_full():
    recent = RecentUsage()
    for tick in range(41):
        recent.add(at(tick / 10, tick / 10, "first"))
    for tick in range(1, 31):  # the first has gone, the second counts from 0
        recent.add(at(4 + tick / 10, tick / 10, "second"))
    assert recent.device_shares(UUID) == {window: pytest.approx(1.0) for window in ("1s", "10s", "60s")}
    assert recent.share((UUID, "second"), 10.0) == pytest.approx(1.0)


def test_a_device_nobody_uses():
    assert RecentUsage().device_shares(UUID) == {"1s": 0.0, "10s": 0.0, "60s": 0.0}
    assert filled((0, 1), (1, 1)).device_shares(UUID)["1s"] == 0.0


def test_bounded():
    recent = filled(*[(tick / 10, 0) for tick in range(5000)])
    assert len(list(recent.since(1e9))) == 1200
    assert len(list(recent.since(1.0))) == 11
    slow = filled(*[(tick, 0) for tick in range(5000)])
    assert len(list(slow.since(1e9))) == 122  # two minutes, and the one before


def test_samples_of_many_groups_take_a_few_bytes_each():
    def sample(tick: int) -> Snapshot:
        groups = tuple(
            GroupUsage(name=f"g{number}", used_ns=tick * 10**7 + number, memory_used=tick << 20) for number in range(10)
        )
        return Snapshot(devices=(DeviceUsage(uuid=UUID, groups=groups),), now_ns=tick * 10**8)

    recent = RecentUsage()
    recent.add(sample(0))
    tracemalloc.start()
    try:
        for tick in range(1, 1300):
            recent.add(sample(tick))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10 * 1200 * 32  # groups, samples, bytes: a dictionary a sample took some 300


def test_groups_that_come_and_go_are_forgotten():
    recent = RecentUsage()
    for tick in range(5000):
        recent.add(at(tick / 10, tick, f"g{tick // 2}"))
    assert len(recent._series) == 2  # of the group and of the device
    assert len(recent._gone) <= 601
    newest_first = [row.group for _, rows in recent.since(0.3) for row in rows]
    assert newest_first == ["g2499", "g2499", "g2498", "g2498"]


def test_what_a_program_writes_into_its_ledger_ends_nothing():
    group = GroupUsage(name="g", used_ns=5, memory_used=2**64 - 1)
    recent = RecentUsage()
    recent.add(Snapshot(devices=(DeviceUsage(uuid=UUID, groups=(group,)),), now_ns=1))
    [(_, [row])] = recent.since(1.0)
    assert row.memory == 2**63 - 1


def test_limiter():
    limiter = Limiter(2)
    assert [limiter.allow("k", now=0.0)[0] for _ in range(4)] == [True, True, False, False]
    assert limiter.allow("other", now=0.0) == (True, 0)
    assert limiter.allow("k", now=61.0) == (True, 2)


def test_a_clock_that_is_set_back_holds_no_lines_back():
    limiter = Limiter(1)
    assert [limiter.allow("k", now=1e9)[0] for _ in range(2)] == [True, False]
    assert limiter.allow("k", now=1e9 - 86400) == (True, 1)
    assert not limiter.allow("k", now=1e9 - 86390)[0]


def test_limiter_does_not_grow_without_end():
    limiter = Limiter(1)
    for number in range(5000):
        limiter.allow(number, now=0.0)
    assert len(limiter._windows) <= Limiter.MAX_KEYS


def test_a_flood_of_events_is_kept_but_not_logged(caplog):
    ring = EventRing()
    with caplog.at_level("INFO", logger="gemlet"):
        for _ in range(300):
            ring.add_native({"kind": "refused", "group": "g", "text": "1024"}, time=0.0)
    assert len(ring.after(0, 1000)) == 300
    assert len(caplog.records) <= LOGGED_PER_MINUTE


def test_names_of_groups_and_long_commands_fill_no_log(caplog):
    ring = EventRing()
    with caplog.at_level("INFO", logger="gemlet"):
        for number in range(3000):
            ring.add("granted", time=0.0, group=f"g{number}", uid=70001, command="x" * 60_000)
        assert len(caplog.records) == LOGGED_PER_MINUTE
        for uid in range(70000, 71000):
            ring.add("granted", time=1.0, uid=uid, text="y" * 60_000)
        assert len(caplog.records) <= LOGGED_IN_ALL
        ring.add("removed", time=1.0, group="of the daemon")
    assert "of the daemon" in caplog.records[-1].getMessage()
    assert sum(len(record.getMessage()) for record in caplog.records) < LOGGED_IN_ALL * 2000
    assert all(len(event.command) + len(event.text) < 2000 for event in ring.after(0, 1000))


def test_what_a_group_was_charged_for_never_falls():
    recent, key = RecentUsage(), (b"", "g")
    totals = [recent.total(key, GroupUsage(name="g", used_ns=used, launches=3, work_ns=30)) for used in (5, 4, 9)]
    assert totals == [(5, 3, 30), (5, 3, 30), (9, 3, 30)]
