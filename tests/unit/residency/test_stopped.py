"""Clients that are stopped while they wait: nobody leaves for one that does not say that it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.residency.conftest import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.residency.conftest import Scene


def busy(scene: Callable[..., Scene], clients: int) -> Scene:
    """So many that always have work, of which one fits; the first one is on the device."""
    s = scene(capacity=100 * GIB)
    for number in range(clients):
        s.client(number, number, 60 * GIB)
    for number in range(clients):
        s.request(number)
    s.to(100)
    assert s.resident() == {0}
    return s


def test_nobody_leaves_for_one_that_is_stopped(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 2)
    s.stopped.add(1)
    for ms in range(1000, 60_000, 100):
        s.to(ms)
        assert s.resident() == {0}


def test_the_next_in_turn_comes_in_its_place(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 3)
    s.stopped.add(1)
    seen = set()
    for ms in range(1000, 60_000, 100):
        s.to(ms)
        seen |= s.resident()
    assert seen == {0, 2}


def test_a_place_that_became_free_is_not_its_either(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 3)
    s.stopped.add(1)
    s.leave(0)
    s.to(3000)
    assert s.resident() == {2}


def test_it_has_its_turn_when_it_goes_on(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 2)
    s.stopped.add(1)
    s.to(30_000)
    s.stopped.clear()
    s.obey(1)
    s.to(40_000)
    assert s.usage(1)["last_handover"] or s.resident() == {1}


def test_an_answer_counts_once(scene: Callable[..., Scene]) -> None:
    """One that answered, and is stopped when its turn comes the next time, is asked again."""
    s = busy(scene, 2)
    s.to(20_000)  # some turns
    while s.resident() != {0}:
        s.to(s.now / 1_000_000 + 50)
    s.stopped.add(1)
    for _ in range(200):
        s.to(s.now / 1_000_000 + 100)
        assert s.resident() == {0}


def until(s: Scene, ms: int) -> set[int]:
    """Who was on the device meanwhile."""
    seen = set()
    while s.now < ms * 1_000_000:
        s.to(s.now / 1_000_000 + 20)
        seen |= s.resident()
    return seen


@pytest.mark.parametrize("stopped", [1, 3, 200])
def test_however_many_are_stopped_the_next_one_waits_for_two_answers(scene: Callable[..., Scene], stopped: int) -> None:
    """A suspended job of many processes, or a user's who has a thousand: they are not asked one after another."""
    s = busy(scene, stopped + 2)
    s.stopped |= set(range(1, stopped + 1))
    assert until(s, 4000) == {0, stopped + 1}


def test_who_is_stopped_after_it_was_asked_early_takes_no_place(scene: Callable[..., Scene]) -> None:
    """It answered while the one before it was waited for."""
    s = busy(scene, 4)
    s.stopped.add(1)
    before = s.orders[2][1]
    while s.orders[2][1] == before:
        s.to(s.now / 1_000_000 + 20)
        assert s.now < 4_000_000_000
    assert s.said[2] == s.orders[2][1]
    assert s.resident() == {0}
    s.stopped.add(2)
    assert until(s, 8000) == {0, 3}


def test_few_orders_are_sent_while_one_is_waited_for(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 12)
    s.stopped.add(1)
    before = {number: order for number, (_, order) in s.orders.items()}
    until(s, 1700)
    sent = {number: order - before[number] for number, (_, order) in s.orders.items()}
    assert all(sent[number] <= 2 for number in range(3, 12)), sent


def test_those_who_were_asked_early_have_their_turn_when_they_go_on(scene: Callable[..., Scene]) -> None:
    s = busy(scene, 5)
    s.stopped |= {1, 2, 3}
    assert until(s, 10_000) == {0, 4}
    s.stopped.clear()
    s.settle()
    assert until(s, 60_000) == {0, 1, 2, 3, 4}
