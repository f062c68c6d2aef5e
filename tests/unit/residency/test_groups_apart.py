"""Programs that wait within the limit of their group hold up no other group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.residency.conftest import GIB, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.residency.conftest import Scene

CAPACITIES = pytest.mark.parametrize("capacity", [None, 100 * GIB])


def busy_group(scene: Callable[..., Scene], capacity: int | None) -> Scene:
    """Its programs always have work, and one at a time has room: another one always waits."""
    s = scene(capacity=capacity)
    s.residency.set_group(1, 10 * GIB, 1.0, 0)
    s.residency.set_group(2, 10 * GIB, 1.0, 0)
    for number in range(2):
        s.client(number, 1, 8 * GIB)
        s.request(number)
    s.to(20_000)
    return s


@CAPACITIES
def test_an_idle_place_of_a_group_is_given_away_at_once(scene: Callable[..., Scene], capacity: int | None) -> None:
    s = busy_group(scene, capacity)
    for number in (10, 11):
        s.client(number, 2, 8 * GIB)
    longest = 0.0
    for turn in range(40):
        comes = 10 + turn % 2
        s.request(comes)
        began = s.now
        while comes not in s.resident():
            s.to(s.now / MS + 10)
        longest = max(longest, (s.now - began) / MS)
        s.idle(comes)
        s.to(s.now / MS + 1700)  # its place is anybody's by now
    assert longest <= 100


@CAPACITIES
def test_room_that_is_free_in_a_group_is_not_kept_for_another(
    scene: Callable[..., Scene], capacity: int | None
) -> None:
    s = busy_group(scene, capacity)
    for number in (10, 11):
        s.client(number, 2, 6 * GIB)
        s.request(number)
        s.to(s.now / MS + 10_000)
        s.idle(number)
    away = 10 if 10 not in s.resident() else 11
    s.leave(21 - away)
    s.to(s.now / MS + 4000)
    s.request(away)
    s.to(s.now / MS + 10)
    assert away in s.resident()


def test_who_waits_in_another_group_takes_nobodys_turn(scene: Callable[..., Scene]) -> None:
    s = busy_group(scene, None)
    for number in (10, 11):
        s.client(number, 2, 8 * GIB)
        s.request(number)
    s.to(s.now / MS + 400)
    assert 10 in s.resident()


@CAPACITIES
def test_both_groups_take_their_turns(scene: Callable[..., Scene], capacity: int | None) -> None:
    """Beside one that needs room of the device, and waits no longer than for their epochs."""
    s = busy_group(scene, capacity)
    for number, group, size in ((10, 2, 8), (11, 2, 8), (20, 3, 90)):
        s.client(number, group, size * GIB)
        s.request(number)
    waits = dict.fromkeys((0, 1, 10, 11, 20), 0)
    for _ in range(3000):
        s.to(s.now / MS + 20)
        here = s.resident()
        waits = {number: 0 if number in here else waited + 20 for number, waited in waits.items()}
        assert max(waits.values()) <= 5100, waits
        assert capacity is None or sum(s.mapped.values()) <= capacity


def test_what_groups_that_wait_cost_does_not_grow_much_faster_than_they_are(scene: Callable[..., Scene]) -> None:
    """Each change looks at all of them: four times as many cost some sixteen times as much, and not 64."""

    def cost(groups: int) -> float:
        residency = scene(capacity=100_000 * GIB).residency
        began = time.thread_time()
        for client in range(2 * groups):
            group = client // 2
            residency.set_group(group, 10 * GIB, 1.0, 0)
            residency.add(client, group, 0)
            residency.admit(client, 8 * GIB, 0)
        for client in range(2 * groups):
            residency.request(client, MS)
        for client in range(2 * groups):
            residency.report(client, client, client, False, 10_000 * MS)
        return time.thread_time() - began

    assert cost(200) < 32 * min(cost(50) for _ in range(3))
