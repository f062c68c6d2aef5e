"""What it takes to plan for hundreds of gangs, which any user can have by naming groups. In the processor's time."""

from __future__ import annotations

import time

from tests.unit.arbiter.conftest import MS, native


def cost(count: int) -> float:
    """Seconds of one look at ``count`` gangs of two clients that all want to run; the least of some."""
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
    took, now = [], MS
    for _ in range(10):
        now += 10 * MS
        began = time.thread_time()
        gangs.settle(now)
        for device in devices:
            device.tick(now)
        took.append(time.thread_time() - began)
    return min(took)


def test_four_times_as_many_gangs_take_no_longer_than_their_pairs() -> None:
    few, many = min(cost(40) for _ in range(3)), min(cost(160) for _ in range(3))
    assert many < 24 * few, (few, many)  # 16 times as many pairs; what looks at triples takes 64 times as long
