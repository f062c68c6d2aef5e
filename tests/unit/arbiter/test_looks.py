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


def test_what_it_did_alone_before_it_began_to_work_is_no_measure(scene: Callable[..., Scene]) -> None:
    """While it loads, a program waits for its device for little work; later its neighbours are why it waits."""
    s = scene(open=True)
    s.group("a")
    s.group("b")
    s.client(0, "a", wants=True)
    samples = awaited = work = launches = 0.0

    def goes_on(ms: int, *, waits: float, works: float, launched: float) -> None:
        nonlocal samples, awaited, work, launches
        for _ in range(ms):
            s.to(s.ms + 1)
            samples += 1_000_000 / int(s.holders[0]["poll"])
            awaited += waits * 1_000_000 / int(s.holders[0]["poll"])
            work += works * 1_000_000
            launches += launched
            s.arbiter.progress(0, round(work), round(launches), round(samples), round(samples), round(awaited))

    goes_on(300, waits=0.6, works=0.2, launched=20)  # small kernels, alone
    s.client(1, "b", wants=True)
    goes_on(3000, waits=0.95, works=0.5, launched=0.25)  # graphs of 2 ms; half of the time is its neighbour's
    assert s.usage("a")["speed"] == pytest.approx(0.5, abs=0.1)
