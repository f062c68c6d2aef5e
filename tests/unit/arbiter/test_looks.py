"""How often clients look at their queues: each look costs a program that is bound by its host some of its speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.arbiter.conftest import Scene

SELDOM, OFTEN = 5_000_000, 1_000_000


class Program:
    """Always busy on the device; what it has said of its looks so far."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene, self.number = scene, number
        self.samples = self.awaited = 0.0

    def works(self, ms: float, *, awaited: float) -> None:
        samples = ms * 1_000_000 / self.poll
        self.samples += samples
        self.awaited += samples * awaited
        work = round(self.scene.now / 3)
        self.scene.arbiter.progress(
            self.number, work, round(self.scene.ms * 10), round(self.samples), round(self.samples), round(self.awaited)
        )

    @property
    def poll(self) -> int:
        return int(self.scene.holders[self.number]["poll"])


def pair(scene: Callable[..., Scene], **first: object) -> tuple[Scene, Program, Program]:
    s = scene(open=True)
    s.group("a", **first)
    s.group("b")
    for number, group in enumerate("ab"):
        s.client(number, group, wants=True)
    return s, Program(s, 0), Program(s, 1)


def run(s: Scene, ms: int, *programs: tuple[Program, float]) -> None:
    for _ in range(ms):
        s.to(s.ms + 1)
        for program, awaited in programs:
            program.works(1, awaited=awaited)


def test_one_that_hardly_waits_is_looked_at_as_seldom_as_one_that_is_alone(scene: Callable[..., Scene]) -> None:
    s, a, b = pair(scene)
    run(s, 5, (a, 0.02), (b, 0.35))
    assert (a.poll, b.poll) == (OFTEN, OFTEN)  # nothing is known yet
    run(s, 100, (a, 0.02), (b, 0.35))
    assert (a.poll, b.poll) == (SELDOM, OFTEN)


def test_one_that_begins_to_wait_is_looked_at_often_before_it_can_be_behind(scene: Callable[..., Scene]) -> None:
    s, a, b = pair(scene)
    run(s, 200, (a, 0.02), (b, 0.02))
    assert (a.poll, b.poll) == (SELDOM, SELDOM)
    run(s, 50, (a, 1.0), (b, 0.02))
    assert (a.poll, b.poll) == (OFTEN, SELDOM)


@pytest.mark.parametrize(("awaited", "poll"), [(0.02, SELDOM), (0.1, OFTEN)])
def test_the_more_is_promised_the_less_it_may_wait(scene: Callable[..., Scene], awaited: float, poll: int) -> None:
    s, a, b = pair(scene, min=0.9)
    run(s, 200, (a, awaited), (b, 0.02))
    assert (a.poll, b.poll) == (poll, SELDOM)
