"""Clients that are stopped while they wait: nobody leaves for one that does not say that it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
