"""Work beside the event loop that hangs or fails costs itself, and nothing piles up behind it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from gemlet.daemon.aside import Aside
from gemlet.daemon.programs import Program, Programs
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest


class Hanging:
    """A thread that hangs in its first work."""

    def __init__(self, aside: Aside) -> None:
        self.go_on, self.hangs = threading.Event(), threading.Event()
        aside.do(self._hang)
        assert self.hangs.wait(60)

    def _hang(self) -> None:
        self.hangs.set()
        assert self.go_on.wait(60)


def test_nothing_piles_up_behind_work_that_hangs() -> None:
    aside, done = Aside("test"), []

    def save() -> None:
        done.append(1)

    async def ask_again_and_again() -> None:
        for _ in range(100):
            aside.do(save)
            assert not await aside.settle(0.0001)

    hanging = Hanging(aside)
    asyncio.run(ask_again_and_again())
    assert len(aside) == 1
    hanging.go_on.set()
    assert asyncio.run(aside.settle(60.0))
    assert done == [1]


def test_programs_that_come_and_go_leave_nothing_behind_work_that_hangs() -> None:
    go_on, hangs = threading.Event(), threading.Event()

    def look(pid: int) -> Program:
        hangs.set()
        assert go_on.wait(60)
        return Program(name=str(pid))

    programs = Programs(look, user_of=lambda _: 1000)
    for pid in range(1, 100):
        programs.ask([(pid, 0)])
        assert hangs.wait(60)
    assert len(programs._aside) == 1
    go_on.set()
    eventually(lambda: programs.find((99, 0)).name == "99")


def test_work_that_hangs_holds_up_its_own_lane_alone() -> None:
    aside, done = Aside("test"), []
    hanging = Hanging(aside)
    aside.do(lambda: done.append(1), lane="other")
    assert asyncio.run(aside.settle(60.0, lane="other"))
    assert done == [1]
    assert not asyncio.run(aside.settle(0.0001))
    hanging.go_on.set()
    assert asyncio.run(aside.settle(60.0))


def test_threads_end_with_their_work() -> None:
    aside = Aside("test that ends")
    for lane in range(9):
        aside.do(lambda: None, lane=lane)
    eventually(lambda: all(thread.name != "test that ends" for thread in threading.enumerate()))
    assert len(aside) == 0


def test_work_that_fails_costs_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="gemlet")
    aside, done = Aside("test"), []

    def fail() -> None:
        raise MemoryError

    aside.do(fail)
    aside.do(lambda: done.append(1))
    assert asyncio.run(aside.settle(60.0))
    assert done == [1]
    assert "some work failed" in caplog.text
