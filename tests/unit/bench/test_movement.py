"""Bytes between looks become hand-overs, with the time each way took."""

from __future__ import annotations

from typing import Any

import pytest

from bench.movement import GIB, Moved, Step, hand_overs


def test_nothing_moved() -> None:
    assert hand_overs([]) == []


def test_what_follows_without_a_pause_is_one_hand_over() -> None:
    steps = [Step(1.0, 1.1, GIB, 0), Step(1.1, 1.2, GIB, 0), Step(1.15, 1.3, 0, GIB)]
    (one,) = hand_overs(reversed(steps))
    assert (one.begin, one.end, one.out, one.into) == (1.0, 1.3, 2 * GIB, GIB)
    assert one.out_seconds == pytest.approx(0.2)
    assert one.into_seconds == pytest.approx(0.15)
    assert one.rate == pytest.approx(3 * GIB / 0.3 / 1e9)


def test_a_pause_ends_it() -> None:
    first, second = hand_overs([Step(1.0, 1.1, GIB, 0), Step(1.3, 1.4, 0, GIB)])
    assert (first.into, first.into_seconds) == (0, 0.0)
    assert (second.out, second.out_seconds) == (0, 0.0)


def test_a_long_step_bridges_short_ones() -> None:
    steps = [Step(1.0, 2.0, GIB, 0), Step(1.2, 1.3, 0, GIB), Step(2.05, 2.1, 0, GIB)]
    assert len(hand_overs(steps)) == 1


def test_memory_that_left_without_a_copy_is_not_a_hand_over() -> None:
    assert hand_overs([Step(1.0, 1.1, 0, 0, GIB)]) == []


def test_one_that_leaves_has_not_come_when_it_brings_a_little_back() -> None:
    moved = Moved()
    moved.look(snapshot(here=True), 0.0, 0.1)
    moved.look(snapshot(here=False, moved_out=64), 0.1, 0.2)
    moved.look(snapshot(here=False, moved_out=64, moved_in=2), 0.2, 0.3)
    assert moved.came == []
    moved.look(snapshot(here=True, moved_out=64, moved_in=64), 0.3, 0.4)
    moved.look(snapshot(here=True, moved_out=64, moved_in=64), 0.4, 0.5)
    assert moved.came == [0.4]
    assert [step.into for step in moved.steps] == [0, 2, 62]


def snapshot(*, here: bool, moved_out: int = 0, moved_in: int = 0) -> dict[str, Any]:
    return {"here": here, "moved_out": moved_out, "moved_in": moved_in, "dropped": 0}
