"""The class `latency`: its parked token stays while others hold theirs, and it goes to work without asking."""

from __future__ import annotations

import pytest

URGENT, BUSY, OTHER = 1, 2, 3


def beside(scene, priority="normal", *, urgent=None, **parameters):
    s = scene(**parameters)
    s.group("urgent", priority="latency", **(urgent or {}))
    s.group("busy", priority=priority)
    s.client(URGENT, "urgent", wants=True)
    s.client(BUSY, "busy")
    s.to(1)
    s.request(BUSY)
    s.stop(URGENT, "idle")
    assert BUSY in s.holders
    return s


@pytest.mark.parametrize("priority", ["normal", "best-effort"])
def test_its_token_is_parked_though_another_runs(scene, priority):
    s = beside(scene, priority)
    assert URGENT in s.parked
    s.to(20)
    s.took(URGENT)
    assert s.holders[BUSY]["revoked"]
    assert s.holders[BUSY]["deadline"] == s.now
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    assert set(s.holders) == {URGENT}
    s.to(20.3)
    s.stop(URGENT, "idle")
    assert set(s.holders) == {BUSY}
    assert URGENT in s.parked


def test_it_is_charged_from_the_end_of_the_drain(scene):
    s = beside(scene)
    s.to(20)
    s.took(URGENT)
    s.to(20.1)
    s.stop(BUSY, "revoked", tail=0.2, drained=False)
    s.to(20.3)
    s.drain(BUSY)
    s.to(20.6)
    before = 1.0  # its first turn
    s.stop(URGENT, "idle")
    assert s.used("urgent") - before == pytest.approx(0.3)
    assert s.used("busy") == pytest.approx(20.3 - 1)


def test_not_beyond_its_share(scene):
    """A client that keeps the device for long is ahead of its share, and must ask like any other."""
    s = beside(scene)
    for _ in range(60):
        s.took(URGENT)
        s.stop(BUSY, "revoked")
        s.request(BUSY)
        s.to(s.ms + 10)
        s.stop(URGENT, "idle")
        if URGENT not in s.parked:
            break
        s.to(s.ms + 0.1)
    assert URGENT not in s.parked
    assert s.used("urgent") < 250
    s.request(URGENT)  # waits for its turn now
    assert URGENT not in s.holders
    s.stop(BUSY)
    s.to(s.ms + 500)
    assert s.usage("busy")["reason"]


def test_of_many_that_come_only_the_first_ones_cut_in_at_once(scene):
    """Each of them has had nothing yet: without a bound they would have the device one after another."""
    s = scene()
    s.group("busy", min=0.8)
    s.client(BUSY, "busy", wants=True)
    s.to(100)
    cut_in = []
    for number in range(10, 20):
        s.group(f"new{number}", priority="latency")
        s.client(number, f"new{number}", wants=True)
        if s.holders[BUSY].get("revoked"):
            s.stop(BUSY, "revoked")
            s.request(BUSY)
        cut_in.append(number in s.holders)
        if not cut_in[-1]:
            break
        s.to(s.ms + 1)
        s.stop(number, "idle")
    assert cut_in == [True] * 4 + [False]
    s.stop(BUSY)
    s.to(s.ms + 1)
    s.stop(number, "idle")
    s.request(BUSY)
    s.to(s.ms + 150)
    s.request(number)
    assert s.holders[BUSY]["revoked"]  # it has been there for long enough
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    s.stop(number, "idle")
    assert number in s.parked


def test_two_of_them_do_not_interrupt_each_other(scene):
    s = beside(scene)
    s.group("also", priority="latency")
    s.client(OTHER, "also", wants=True)
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    assert set(s.holders) == {OTHER}
    assert URGENT not in s.parked  # it would interrupt one of its own kind
    s.stop(OTHER, "idle")
    s.request(URGENT)
    s.stop(BUSY, "revoked")
    assert set(s.holders) == {URGENT}


def test_at_its_maximum_it_loses_the_right(scene):
    s = beside(scene, urgent={"max": 0.1})
    for _ in range(10):
        if URGENT not in s.parked:
            break
        s.took(URGENT)
        s.stop(BUSY, "revoked")
        s.request(BUSY)
        s.to(s.ms + 4)
        s.stop(URGENT, "idle")
    assert URGENT not in s.parked


def test_fifo_gives_no_such_right(scene):
    s = scene("fifo")
    s.group("urgent", priority="latency")
    s.group("busy")
    s.client(URGENT, "urgent", wants=True)
    s.client(BUSY, "busy")
    s.request(BUSY)
    s.stop(URGENT, "idle")
    assert BUSY in s.holders
    assert URGENT not in s.parked


def test_its_neighbours_have_little_in_flight_while_it_gets_requests(scene):
    s = beside(scene, window_shared=400_000, window_latency=40_000, latency_quiet=10_000_000_000)
    assert s.holders[BUSY]["window"] == 40_000
    s.to(9_000)
    assert s.holders[BUSY]["window"] == 40_000
    s.to(11_100)
    assert s.holders[BUSY]["window"] == 8_000_000
    s.took(URGENT)
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    s.to(s.ms + 0.2)
    s.stop(URGENT, "idle")
    assert s.holders[BUSY]["window"] == 40_000
