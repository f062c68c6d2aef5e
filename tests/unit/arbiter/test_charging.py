"""What a client that nobody shares the device with is charged for: the time in which the device worked for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gemlet.simulate.workload import ProgramSpec
from tests.unit.arbiter.open_device import LAUNCH_BOUND, MS, SATURATING, SECOND, US, Shared

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


@pytest.mark.parametrize("first", [0, 1])
def test_what_clients_were_charged_while_they_shared_stays_when_turns_begin(first):
    """The one that came last and went on lost half a second of its charges, so it was shown 0.65 of what it had."""
    late = replace(LAUNCH_BOUND, kind="changing", every=2 * SECOND)
    pair = (late, SATURATING) if first == 0 else (SATURATING, late)
    shared = Shared(*pair, seconds=4)
    for number in range(2):
        work = shared.outcome.work(number)
        assert shared.outcome.usage[f"g{number}"] == pytest.approx(work, rel=0.02)


@pytest.mark.parametrize("minima", [(0.5, 0.5), (0.9, 0.1), (0.25, 0.21, 0.16, 0.13, 0.1, 0.07, 0.05, 0.03)])
def test_shares_hold_also_in_the_seconds_in_which_turns_begin(minima):
    """All run freely for a moment, and work that is queued then drains in slices: each pays for its part of that."""
    shared = Shared(*(({"min": least}, ProgramSpec(kernel=100 * US)) for least in minima), seconds=2)
    for begin in range(0, SECOND // 2, 50 * MS):
        for number, least in enumerate(minima):
            assert shared.outcome.work(number, begin, begin + SECOND) / SECOND == pytest.approx(least, abs=0.02)


@pytest.mark.parametrize("later", [0, 5, 10, 20, 40])
def test_the_first_turn_puts_nobody_behind_for_good(later):
    """With a whole first turn one of two is never ahead, and up to a whole turn behind, in each second from then on."""
    kernels = ProgramSpec(kernel=100 * US)
    shared = Shared(({"min": 0.5}, kernels), ({"min": 0.5}, replace(kernels, arrive=later * MS)), seconds=2)
    worst = [
        min(
            shared.speed(number, start=begin, end=begin + SECOND) - 0.5
            for begin in range(later * MS, SECOND // 2, 10 * MS)
        )
        for number in range(2)
    ]
    assert min(worst) == pytest.approx(max(worst), abs=0.004)
    assert min(worst) > -0.0115


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("frozen", [1, 3])
def test_programs_that_were_stopped_do_not_pay_for_what_ran_beside_them(
    scene: Callable[..., Scene], frozen: int, goes_on: bool
) -> None:
    """They share openly, reach their maximum, and are stopped (Ctrl-Z, a frozen cgroup) before they can say so. Then
    they go on, or are killed."""
    s = scene(open=True)
    s.group("frozen", max=0.3)
    s.group("other")
    stopped = range(1, 1 + frozen)
    for client in stopped:
        s.client(client, "frozen", wants=True)
    s.client(0, "other", wants=True)
    for ms in range(1, 5 * SECOND_MS):
        s.to(ms)
        s.progress(0, ms)
    assert s.used("frozen") < 50
    for client in stopped:
        if not goes_on:
            s.leave(client)
            continue
        s.stop(client, tail=0.5, drained=False)
        s.to(s.ms + 0.2)
        s.drain(client)
    assert s.used("frozen") < 100
