"""Parked tokens and grants at the same moment: the arbiter knows which clients end up running, and no two overlap for
long."""

from __future__ import annotations

import pytest

URGENT, BUSY, OTHER, WIDE = 1, 2, 3, 4


def parked_by_right(scene, **urgent):
    """URGENT is parked while BUSY runs."""
    s = scene()
    s.group("urgent", priority="latency", **urgent)
    s.group("busy")
    s.client(URGENT, "urgent", wants=True)
    s.client(BUSY, "busy")
    s.to(1)
    s.request(BUSY)
    s.stop(URGENT, "idle")
    assert URGENT in s.parked
    return s


def test_taking_a_parked_token_takes_away_those_that_do_not_fit(scene):
    s = parked_by_right(scene)
    s.to(10)
    s.stop(BUSY, "idle")
    assert s.parked == {URGENT, BUSY}
    s.took(URGENT)
    assert BUSY not in s.parked


def test_taking_a_parked_token_leaves_those_that_may_interrupt(scene):
    s = parked_by_right(scene)
    s.to(10)
    s.stop(BUSY, "idle")
    s.took(BUSY)
    assert URGENT in s.parked


def test_two_latency_clients_do_not_run_at_once(scene):
    s = parked_by_right(scene)
    s.group("also", priority="latency")
    s.client(OTHER, "also", wants=True)
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    s.to(s.ms + 0.2)
    s.stop(OTHER, "idle")
    s.request(URGENT)
    s.stop(BUSY, "revoked")
    s.request(BUSY)
    s.stop(URGENT, "idle")
    for first, second in ((URGENT, OTHER), (OTHER, URGENT)):
        if first in s.parked:
            s.took(first)
            assert second not in s.parked
            break
    else:
        pytest.fail("none is parked")


@pytest.mark.parametrize("now", [{}, {"priority": "best-effort"}, {"priority": "latency", "max": 0.0}])
def test_a_group_that_loses_the_right_loses_the_token(scene, now):
    s = parked_by_right(scene)
    s.to(10)
    s.group("urgent", **now)
    assert URGENT not in s.parked


def test_a_group_that_lost_the_right_but_was_faster_stops_soon(scene):
    s = parked_by_right(scene)
    s.to(10)
    s.group("urgent", priority="best-effort")
    s.took(URGENT)  # before it heard
    s.to(11)
    assert s.usage("urgent")["holding"] == 1
    deadlines = [s.deadline(n) for n in (URGENT, BUSY)]
    assert any(d is not None and d < 20 for d in deadlines)


def test_two_that_were_faster_than_the_order_both_count(scene):
    """Both narrow clients take their tokens in the moment in which the wide one is granted."""
    s = scene()
    for name, number in (("left", BUSY), ("right", OTHER)):
        s.group(name, sm=0.5)
        s.client(number, name, wants=True, mps=True)
    s.group("wide")
    s.client(WIDE, "wide")
    s.to(1)
    for number in (BUSY, OTHER):
        s.stop(number, "idle")
    assert s.parked == {BUSY, OTHER}
    s.request(WIDE)
    assert set(s.holders) == {WIDE}
    s.took(BUSY)
    assert s.holders.pop(WIDE)["revoked"]
    s.took(OTHER)
    assert [s.usage(g)["holding"] for g in ("left", "right", "wide")] == [1, 1, 0]
    assert s.usage("wide")["waiting"] == 1
    s.stop(BUSY, "idle")
    s.stop(OTHER, "idle")
    assert set(s.holders) == {WIDE}


def test_a_client_that_never_runs_does_not_make_its_neighbours_spin(scene):
    s = scene(window_shared=400_000, window_latency=40_000)
    s.group("urgent", priority="latency", max=0.0)
    s.group("busy")
    s.client(URGENT, "urgent", wants=True)
    s.client(BUSY, "busy", wants=True)
    assert s.holders[BUSY]["window"] == 400_000
