"""Clients that are given room for which others left, and do not fill it, whatever they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.residency.conftest import GIB, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.residency.conftest import Scene

SLOW = 3000  # ms in which a tenth has to come


def let_in(scene: Callable[..., Scene]) -> Scene:
    """Of two that always have work and of which one fits, the second has just been let in, and fills nothing."""
    s = scene(capacity=100 * GIB)
    for number in range(2):
        s.client(number, number, 60 * GIB)
        s.request(number)
    s.to(100)
    s.stopped.add(1)
    while s.orders[1][0] < 60 * GIB:
        s.to(s.now / MS + 100)
        if s.orders[1][0] < 60 * GIB:
            s.say(1)  # it is there
            s.collect()
            s.settle()
    return s


@pytest.mark.parametrize("complete", [True, False])
def test_it_keeps_its_place_for_a_moment_only(scene: Callable[..., Scene], complete: bool) -> None:
    s = let_in(scene)
    since = s.now
    while s.resident() != {0}:
        s.residency.report(1, 0, s.orders[1][1], complete, s.now)
        s.collect()
        s.to(s.now / MS + 100)
        assert s.now - since <= (SLOW + 200) * MS


def test_words_of_little_progress_do_not_help(scene: Callable[..., Scene]) -> None:
    s = let_in(scene)
    since = s.now
    for step in range(1000):
        if s.resident() == {0}:
            break
        s.residency.report(1, step, s.orders[1][1], False, s.now)
        s.collect()
        s.to(s.now / MS + 100)
    assert s.now - since <= (SLOW + 200) * MS


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("less", [GIB, 1])
@pytest.mark.parametrize("grows", [0, 1])
def test_nor_does_it_to_free_and_allocate(scene: Callable[..., Scene], complete: bool, less: int, grows: int) -> None:
    """Each time it was given its room anew, and the time to fill it."""
    s = let_in(scene)
    since, size = s.now, 60 * GIB
    while s.resident() != {0}:
        s.residency.report(1, 0, s.orders[1][1], complete, s.now)
        s.collect()
        s.admit(1, size - less)
        size += grows
        s.admit(1, size)
        s.to(s.now / MS + 100)
        assert s.now - since <= (SLOW + 200) * MS


def test_one_that_comes_slowly_keeps_its_place(scene: Callable[..., Scene]) -> None:
    s = let_in(scene)
    for _ in range(10):
        s.to(s.now / MS + SLOW - 200)
        s.obey(1, 6 * GIB)
    assert s.resident() == {1}


def test_one_that_waits_for_the_rest_of_its_room_keeps_its_place(scene: Callable[..., Scene]) -> None:
    """It may have no use for a part of it, for memory moves in whole chunks."""
    s = scene(capacity=100 * GIB)
    for number in range(2):
        s.client(number, number, 60 * GIB)
        s.request(number)
    s.to(100)
    s.stopped.add(0)
    while s.usage(1)["queued"]:
        s.say(1)
        s.collect()
        s.to(s.now / MS + 100, obey=False)
    for _ in range(200):  # the other one says that it will leave, and finds no memory of the host
        s.to(s.now / MS + 100, obey=False)
        for number in range(2):
            s.say(number)
            s.collect()
    assert not s.usage(1)["queued"]
    s.obey(0)
    s.obey(1)
    assert s.resident() == {1}


def test_its_next_turn_is_a_whole_one(scene: Callable[..., Scene]) -> None:
    """It may have been stopped for a while."""
    s = let_in(scene)
    for _ in range(SLOW // 100 + 2):
        s.say(1)
        s.collect()
        s.to(s.now / MS + 100)
    assert s.resident() == {0}
    s.stopped.clear()
    for _ in range(60):
        s.to(s.now / MS + 100)
        if s.resident() == {1}:
            break
    s.to(s.now / MS + 1000)
    assert s.resident() == {1}
