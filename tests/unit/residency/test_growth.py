"""Clients that allocate and free while others wait for their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.residency.conftest import GIB, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.residency.conftest import Scene

MAX_WAIT = 5000


class Two:
    """Two that always have work, and do not fit together. Of the first one ``step`` is called every 20 ms that it is on
    the device."""

    def __init__(self, scene: Callable[..., Scene], first: int, second: int) -> None:
        self.s = scene(capacity=100 * GIB, max_wait=MAX_WAIT * MS)
        for number, gib in enumerate((first, second)):
            self.s.client(number, number, gib * GIB)
            self.s.request(number)
        self.time = [0, 0]
        self.longest = 0  # that the second one waited

    def play(self, step: Callable[[], None], seconds: int = 60) -> None:
        waits = 0
        for _ in range(seconds * 50):
            here = self.s.resident()
            for number in here:
                self.time[number] += 20
            waits = 0 if 1 in here else waits + 20
            self.longest = max(self.longest, waits)
            if 0 in here:
                step()
            self.s.to(self.s.now / MS + 20)

    def has(self, gib: float) -> None:
        """The first one allocates or frees, and finds no room at first, if there is none."""
        self.s.admit(0, round(gib * GIB))
        self.s.say(0)
        self.s.settle()


@pytest.mark.parametrize("pause", [0, 5])
@pytest.mark.parametrize("rest", [60, 0])
def test_what_a_step_frees_is_not_given_away_before_the_next(
    scene: Callable[..., Scene], rest: int, pause: int
) -> None:
    """It had a step of each of its turns: the other one came into what it freed, and it had to wait for its end."""
    two = Two(scene, 90, 40)

    def step() -> None:
        two.has(rest)
        two.s.to(two.s.now / MS + pause)
        two.has(90)

    two.play(step)
    assert two.time[0] > 0.8 * two.time[1]
    assert two.longest <= MAX_WAIT + 100


@pytest.mark.parametrize("rest", [60, 0])
def test_what_is_freed_for_good_soon_is_anothers(scene: Callable[..., Scene], rest: int) -> None:
    two = Two(scene, 90, 40)
    two.s.to(100)
    two.has(rest)
    assert two.s.resident() == {0}
    two.s.to(160)
    assert two.s.resident() == {0, 1}


def test_latency_does_not_wait_for_what_another_freed(scene: Callable[..., Scene]) -> None:
    s = scene(capacity=100 * GIB)
    s.residency.set_group(1, None, 1.0, 0, True)
    for number in range(2):
        s.client(number, number, 60 * GIB)
    s.request(0)
    s.settle()
    s.to(3000)
    assert s.resident() == {0}
    s.admit(0, 0)
    s.request(1)
    s.settle()
    assert s.resident() == {0, 1}


def test_what_was_freed_is_kept_no_longer_for_small_steps(scene: Callable[..., Scene]) -> None:
    two = Two(scene, 90, 40)
    two.s.to(100)
    two.has(60)
    for ms in range(105, 165, 5):
        two.s.to(ms)
        two.has(58 + ms % 2)
    assert two.s.resident() == {0, 1}


@pytest.mark.parametrize("rest", [60, 0])
def test_one_that_freed_something_goes_when_its_time_is_over(scene: Callable[..., Scene], rest: int) -> None:
    two = Two(scene, 90, 60)

    def step() -> None:
        two.has(rest)
        two.has(90)

    two.play(step)
    assert two.time[1] > 0.8 * two.time[0]
    assert two.longest <= MAX_WAIT + 100


@pytest.mark.parametrize("every", [20, 1000])
def test_one_that_grows_has_no_longer_turns(scene: Callable[..., Scene], every: int) -> None:
    """Each time that the other one had given it the room, its time began anew: that one waited for half a minute."""
    two = Two(scene, 50, 60)
    size, calls = 50.0, 0

    def step() -> None:
        nonlocal size, calls
        calls += 1
        if calls % (every // 20) == 0 and size < 99:
            size += every / 1000
            two.has(size)

    two.play(step, seconds=100)
    assert size > 80
    assert two.longest <= MAX_WAIT + 100
    assert two.time[1] > 0.8 * two.time[0]
