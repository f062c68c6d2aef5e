"""What it takes to plan for hundreds of gangs, which any user can have by naming groups. In the processor's time."""

from __future__ import annotations

import time

from tests.unit.arbiter.conftest import MS, native


def costs(count: int) -> tuple[float, float]:
    """Seconds of one decision about ``count`` gangs of two clients that all want to run, and of one with a look at each
    device; the least of some.
    """
    devices = [native.Arbiter("fair") for _ in range(2)]
    gangs = native.Gangs()
    for device in devices:
        gangs.add(device)
    for number in range(count):
        gangs.tie(f"g{number}")
        for device in devices:
            group = device.set_group(f"g{number}", 0)
            device.add_client(number + 1, group, 0)
            device.request(number + 1, MS)
    decided, looked, now = [], [], MS
    for _ in range(10):
        now += 10 * MS
        began = time.thread_time()
        gangs.settle(now)
        decided.append(time.thread_time() - began)
        for device in devices:
            device.tick(now)
        looked.append(time.thread_time() - began)
    return min(decided), min(looked)


def test_four_times_as_many_gangs_take_no_longer_than_their_pairs() -> None:
    few, many = min(costs(40)[1] for _ in range(3)), min(costs(160)[1] for _ in range(3))
    assert many < 24 * few, (few, many)  # 16 times as many pairs; what looks at triples takes 64 times as long


def test_a_decision_looks_at_each_gang_and_not_at_each_pair() -> None:
    """One comes with every event on any device of the host, also where no gang is: who makes many must not stall it."""
    few, many = min(costs(64)[0] for _ in range(3)), min(costs(256)[0] for _ in range(3))
    assert many < 9 * few, (few, many)  # 4 times as many gangs, 16 times as many pairs
