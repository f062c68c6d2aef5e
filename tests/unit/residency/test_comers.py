"""Clients that come with nothing, again and again, while another waits for the room that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.residency.conftest import GIB, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.residency.conftest import Scene

MAX_WAIT = 5000
STEP = 10


class Comers:
    """Some that have an equal part of the device each, and one that waits for more than any of them leaves free."""

    def __init__(self, scene: Callable[..., Scene], count: int) -> None:
        self.s = scene(capacity=100 * GIB, max_wait=MAX_WAIT * MS)
        self.part = 100 // count * GIB
        self.large = 1000
        self.longest = self.time = 0
        self.next = 0
        self.here: list[int] = []
        for _ in range(count):
            self.here.append(self.comes())
        self.s.to(STEP)
        self.s.client(self.large, self.large, 60 * GIB)
        self.s.request(self.large)

    def comes(self) -> int:
        self.next += 1
        self.s.client(self.next, self.next, self.part)
        self.s.request(self.next)
        return self.next

    def play(self, act: Callable[[int, int], None], seconds: int = 60) -> None:
        """``act(place, ms)`` for each of the others, every 10 ms."""
        waits = 0
        for ms in range(0, seconds * 1000, STEP):
            for place in range(len(self.here)):
                act(place, ms)
                self.s.settle()
            here = self.large in self.s.resident()
            self.time += STEP if here else 0
            waits = 0 if here else waits + STEP
            self.longest = max(self.longest, waits)
            self.s.to(self.s.now / MS + STEP)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("every", "pause"), [(300, 70), (3000, 300)])
def test_those_who_free_all_in_turn_keep_nobody_out(
    scene: Callable[..., Scene], count: int, every: int, pause: int
) -> None:
    """Each had a new epoch when it came back: one that needs two places saw no moment at which both were free."""
    comers = Comers(scene, count)

    def act(place: int, ms: int) -> None:
        phase = (ms + place * every // count) % every
        if phase == every - pause:
            comers.s.admit(comers.here[place], 0)
        elif phase == 0:
            comers.s.admit(comers.here[place], comers.part)
            comers.s.request(comers.here[place])

    comers.play(act)
    assert comers.longest <= MAX_WAIT + 100
    assert comers.time > 5000


@pytest.mark.parametrize("count", [2, 4])
def test_nor_do_those_who_come_and_end(scene: Callable[..., Scene], count: int) -> None:
    comers = Comers(scene, count)

    def act(place: int, ms: int) -> None:
        if (ms + place * 400 // count) % 400 == 0:
            comers.s.leave(comers.here[place])
            comers.here[place] = comers.comes()

    comers.play(act)
    assert comers.longest <= MAX_WAIT + 100
    assert comers.time > 5000


def test_one_that_comes_while_nobody_waits_has_a_whole_turn(scene: Callable[..., Scene]) -> None:
    s = scene(capacity=100 * GIB, max_wait=MAX_WAIT * MS)
    s.client(0, 0, 60 * GIB)
    s.request(0)
    s.to(20_000)
    s.admit(0, 0)
    s.to(21_000)
    s.admit(0, 60 * GIB)
    s.client(1, 1, 60 * GIB)
    s.request(1)
    s.to(21_400)
    assert s.resident() == {0}


def test_one_that_comes_back_in_its_turn_has_the_rest_of_it(scene: Callable[..., Scene]) -> None:
    s = scene(capacity=100 * GIB, max_wait=MAX_WAIT * MS)
    for number in range(2):
        s.client(number, number, 50 * GIB)
        s.request(number)
    s.client(2, 2, 60 * GIB)
    s.request(2)
    s.to(100)
    s.admit(0, 0)
    s.to(200)
    s.admit(0, 50 * GIB)
    s.request(0)
    s.to(450)
    assert s.resident() == {0, 1}
