"""Whatever clients do in whatever order, and however slowly they obey."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few

CAPACITY, HOST, RESIDENT = 100, 120, 40
CLIENTS = 4

Make = "Callable[..., Any]"

client = st.integers(0, CLIENTS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), client, st.integers(0, 130)),
        st.tuples(st.just("request"), client),
        st.tuples(st.just("idle"), client),
        st.tuples(st.just("obey"), client, st.integers(1, 50)),
        st.tuples(st.just("fixed"), client, st.integers(0, 10)),
        st.tuples(st.just("die"), client),
        st.tuples(st.just("rubbish"), client, st.integers(0, 500), st.integers(0, 50), st.booleans()),
        st.tuples(st.just("pass"), st.floats(0.01, 3000)),
    ),
    max_size=80,
)


def group_of(number: int) -> int:
    return number % 2


def check(s: Any) -> None:
    """What is on the device, and what may come before anybody answers, is within the limits."""
    for group, limit in ((None, CAPACITY), (1, RESIDENT)):
        members = [n for n in s.mapped if group is None or group_of(n) == group]
        most = sum(max(s.mapped[n], min(s.orders[n][0], s.movable[n])) + s.fixed[n] for n in members)
        fixed = sum(s.fixed[n] for n in members)
        # Memory that cannot move may have come a moment ago; what moves makes room for it.
        assert most <= max(limit, s.before_fixed.get(group, 0) + fixed)


@few(150)
@given(steps=steps)
def test_never_more_than_fits(scene: Make, steps: list[Any]) -> None:
    s = scene(capacity=CAPACITY, host=HOST, epoch_min=1_000_000)
    s.residency.set_group(1, RESIDENT, 2.0, 0)
    s.before_fixed = {}
    for number in range(CLIENTS):
        s.client(number, group_of(number))
    for step in steps:
        match step:
            case ["admit", number, size]:
                s.admit(number, size)
            case ["request", number]:
                s.request(number)
            case ["idle", number]:
                s.idle(number)
            case ["obey", number, most]:
                s.obey(number, most)
            case ["fixed", number, size] if s.residency.fits_fixed(number, size):
                # As the hook does it: only while there is room.
                total = sum(s.fixed.values()) - s.fixed[number] + size
                if s.residency.held() - sum(s.fixed.values()) + total <= CAPACITY and group_of(number) == 0:
                    s.fixed[number] = size
                    s.residency.set_fixed(number, size, s.now)
                    s.collect()
            case ["die", number]:
                s.leave(number)
                s.client(number, group_of(number))
            case ["rubbish", number, mapped, seen, complete]:
                # A client that claims more than it has harms only itself; `seen` of the past or the future does not
                # count as obedience.
                s.residency.report(
                    number,
                    max(mapped, s.mapped[number]),
                    min(seen, s.orders[number][1] - 1) & 0xFFFFFFFF,
                    complete,
                    s.now,
                )
                s.collect()
            case ["pass", ms]:
                s.to(s.now / 1e6 + ms, obey=False)
        check(s)


@few(60)
@given(
    sizes=st.lists(st.integers(1, CAPACITY), min_size=2, max_size=CLIENTS),
    pauses=st.lists(st.floats(1, 2000), min_size=1, max_size=5),
)
def test_every_client_with_work_gets_its_turn(scene: Make, sizes: list[int], pauses: list[float]) -> None:
    """Within the epochs of all others and its own arrival; here hand-overs take no time, so epochs are the shortest."""
    s = scene(capacity=CAPACITY, epoch_min=100_000_000)
    for number, size in enumerate(sizes):
        s.client(number, 0, size)
        s.request(number)
    waits: dict[int, float] = dict.fromkeys(range(len(sizes)), 0.0)
    for _ in range(5):
        for pause in pauses:
            for _ in range(round(pause / 10)):
                s.to(s.now / 1e6 + 10)
                here = s.resident()
                waits = {number: 0 if number in here else waited + 10 for number, waited in waits.items()}
                assert max(waits.values()) <= len(sizes) * 110, s.residency.usage(s.now)


@few(60)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=CLIENTS))
def test_obedience_ends(scene: Make, sizes: list[int]) -> None:
    """With nobody's epoch over, orders come to rest, and residents are complete."""
    s = scene(capacity=CAPACITY)
    for number, size in enumerate(sizes):
        s.client(number, 0, size)
        s.request(number)
    s.settle()
    assert s.resident()
    for number in s.resident():
        assert s.mapped[number] == s.movable[number]
    if sum(sizes) <= CAPACITY:
        assert s.resident() == set(range(len(sizes)))
