"""Clients of class latency stay on the device while anybody else can make room, and come back without queueing."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30
MS = 1_000_000
LATENCY = 9

Make = "Callable[..., Any]"


def pinned_scene(scene: Make, **options: Any) -> Any:
    s = scene(capacity=100 * GIB, **options)
    s.residency.set_group(LATENCY, None, 1.0, 0, True)
    return s


def test_others_go_first_however_long_it_is_idle(scene: Make) -> None:
    s = pinned_scene(scene)
    s.client(0, LATENCY, 50 * GIB)
    s.client(1, 1, 40 * GIB)
    s.request(1)
    s.to(10_000)
    s.client(2, 2, 40 * GIB)
    for _ in range(5):
        for number in (1, 2):
            s.request(number)
        s.to(s.now / MS + 20_000)
        assert 0 in s.resident()
    assert s.mapped[0] == 50 * GIB
    assert s.usage(1)["last_handover"] == 0  # it did move: both had their epochs
    assert s.moved > 130 * GIB


def test_without_another_candidate_an_idle_one_goes_and_comes_back_at_once(scene: Make) -> None:
    s = pinned_scene(scene)
    s.client(0, LATENCY, 50 * GIB)
    s.client(1, 1, 60 * GIB)
    s.to(1000)
    s.request(1)
    s.settle()
    assert s.resident() == {1}
    assert s.mapped[0] == 40 * GIB  # the deficit
    s.to(s.now / MS + 1)
    s.request(0)
    s.settle()
    assert s.resident() == {0}  # the other's epoch had only begun


def test_a_busy_client_takes_turns_with_one_that_does_not_fit_beside_it(scene: Make) -> None:
    s = pinned_scene(scene, epoch_min=1000 * MS, max_wait=1000 * MS)
    s.client(0, LATENCY, 50 * GIB)
    s.client(1, 1, 60 * GIB)
    held = {0: 0.0, 1: 0.0}
    for _ in range(200):
        for number in (0, 1):
            s.request(number)
        before = s.now
        s.to(s.now / MS + 50)
        for number in s.resident():
            held[number] += (s.now - before) / MS
    assert min(held.values()) >= 0.4 * sum(held.values()), held


def test_one_that_was_let_in_is_not_sent_away_before_it_ran(scene: Make) -> None:
    """Coming takes 400 ms here; a latency client that wakes at once does not undo it."""
    s = pinned_scene(scene)
    s.client(0, LATENCY, 50 * GIB)
    s.client(1, 1, 60 * GIB)
    for number in (0, 1):
        s.request(number)
    s.to(100)
    assert s.resident() == {0}
    s.idle(0)
    s.to(150, obey=False)
    s.obey(0)
    s.now += 400 * MS
    s.obey(1)
    assert s.resident() == {1}
    s.request(0)
    s.settle()
    assert s.resident() == {1}
    s.to(s.now / MS + 390)
    assert s.resident() == {1}
    s.to(s.now / MS + 20)
    assert s.resident() == {0}


def test_together_they_must_fit(scene: Make) -> None:
    s = pinned_scene(scene)
    assert s.client(0, LATENCY, 60 * GIB) == ""
    assert s.client(1, LATENCY, 50 * GIB) == "capacity"
    assert s.client(2, LATENCY, 40 * GIB) == ""
    assert s.client(3, 1, 90 * GIB) == ""  # others only have to fit alone


def test_a_group_that_becomes_one_is_told_what_is_wrong(scene: Make) -> None:
    s = pinned_scene(scene)
    s.client(0, LATENCY, 60 * GIB)
    s.client(1, 1, 60 * GIB)
    s.residency.set_group(1, None, 1.0, s.now, True)
    assert "class latency" in s.usage(1)["reason"]
    for number in (0, 1):
        s.request(number)
    seen: set[int] = set()
    for _ in range(10):
        s.to(s.now / MS + 30_000)
        seen |= s.resident()
    assert seen == {0, 1}
