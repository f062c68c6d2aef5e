"""What a client that nobody shares the device with is charged for: the time in which the device worked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.arbiter.conftest import Scene

SECOND_MS = 1000


def charged(scene: Callable[..., Scene], *, busy: float, work: float, launches: int) -> float:
    """Part of a second, for counters that are parts of the time and launches in a second."""
    s = scene(open=True)
    s.group("a")
    s.client(0, "a", wants=True)
    for ms in range(1, 2 * SECOND_MS + 1):
        if ms == SECOND_MS:
            before = s.used("a")
        s.to(ms)
        part = ms / SECOND_MS
        s.arbiter.progress(
            0, round(work * s.now), round(launches * part), ms * 10, round(ms * 10 * busy), round(ms * 10 * busy)
        )
    return (s.used("a") - before) / SECOND_MS


def test_the_time_until_a_kernel_begins_is_not_charged(scene: Callable[..., Scene]) -> None:
    """As on an H200: kernels of 20 us, one every 44 us, are 25 us each in the queue."""
    assert charged(scene, busy=0.57, work=0.4575, launches=22_900) == pytest.approx(0.4575, abs=0.005)


@pytest.mark.parametrize("work", [0.0, 0.1])
def test_work_that_is_longer_than_its_estimate_is_charged(scene: Callable[..., Scene], work: float) -> None:
    assert charged(scene, busy=0.9, work=work, launches=1000) == pytest.approx(0.9, abs=0.01)


def test_work_that_it_boasts_of_is_not_charged(scene: Callable[..., Scene]) -> None:
    assert charged(scene, busy=0.5, work=1.5, launches=1000) == pytest.approx(0.5, abs=0.005)


def test_a_queue_that_is_never_empty_is_charged_whole(scene: Callable[..., Scene]) -> None:
    assert charged(scene, busy=1.0, work=0.997, launches=10_000) == pytest.approx(1.0, abs=0.005)
