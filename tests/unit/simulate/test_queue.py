"""Moments at which a modelled queue is looked at next: each is later than the last one."""

from __future__ import annotations

import pytest

from gemlet.simulate.queue import Queue

START = 91_314_311  # of a run under MPS, where time stood still


def queue(more: float) -> Queue:
    """400 us are queued, and ``more``, which is so little that no moment tells it."""
    queue = Queue(lambda *_: None)
    queue.launch(3, 200_000, 1, 0)
    queue.settle(2)
    queue.mode, queue.rate, queue.at = "quiet", 0.7, START
    queue.done = queue.given - 400_000 - more
    return queue


@pytest.mark.parametrize("more", [4e-9, 1e-6, 0.5, 7.0])
def test_what_is_left_of_the_work_takes_time(more: float) -> None:
    least = queue(more)
    then = least.falls_to(400_000)
    assert then is not None
    assert then > START
    least.settle(then)
    assert least.backlog <= 400_000


def test_a_queue_that_is_nearly_empty_is_so_later() -> None:
    last = queue(0.0)
    last.done = last.given - 4e-9
    then = last.empty_at()
    assert then == START + 1
    last.settle(then)
    assert last.backlog == 0


def test_room_for_one_more_comes_later() -> None:
    full = queue(4e-9)
    full.window = 400_000
    assert full.room_at() == START + 1
