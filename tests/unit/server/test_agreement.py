"""What the daemon leaves in the pages of its clients, for the time when it does not answer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

PARTS = 1 << 15


def part(client: RawClient) -> tuple[float, float]:
    word = client.page.get("agreed", size=4)
    return (word >> 16) / PARTS, (word & 0xFFFF) / PARTS


def heard(client: RawClient) -> int:
    return client.page.get("heard_ns")


def test_one_that_waits_hears_again_and_again_that_the_daemon_is_there(serve: Callable[..., Served]) -> None:
    s = serve()
    holder, waiting = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    holder.send(wire.REQUEST)
    holder.await_state(wire.RUN)
    waiting.send(wire.REQUEST)  # and the holder never stops
    for _ in range(5):
        before = heard(waiting)
        wire.eventually(lambda before=before: heard(waiting) > before)


def test_those_that_use_the_device_divide_it_and_the_others_may_come_in(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("half", min=0.5)
    s.server.set_group("little", max=0.1)
    half = [RawClient(s.path, "half").attach() for _ in range(2)]
    little, rest, idle, capped = (RawClient(s.path, g).attach() for g in ("little", "rest", "idle", "little"))
    active = [*half, little, rest]
    for client in active:
        client.send(wire.REQUEST)

    parts: list[tuple[float, float]] = []  # as of one moment: the daemon divides anew all the time

    def agreed() -> bool:
        parts[:] = [part(client) for client in active]
        ordered = sorted(parts)
        return ordered[-1][0] > 0.5 and all(end == begin for (_, end), (begin, _) in pairwise(ordered))

    wire.eventually(agreed, lambda: str(parts))
    sizes = [end - begin for begin, end in parts]
    assert sum(sizes) <= 1 + 1e-9
    assert sizes[0] == pytest.approx(sizes[1], abs=1e-3)
    assert sizes[0] + sizes[1] >= 0.5 - 1e-3
    assert sizes[2] <= 0.1 + 1e-3
    assert part(idle) == (0.0, 1.0)
    assert part(capped) == pytest.approx((0.0, 0.1), abs=1e-3)
