"""Memory that cannot move waits until there is room for it, and for no longer than there can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

GIB = 1 << 30
DEVICE = bytes(16)


@pytest.fixture
def path(serve: Callable[..., Served]) -> str:
    """Of a server whose device has 8 GiB, and a group with a limit of 1 GiB of that."""
    served = serve()
    served.server.add_device(DEVICE, 0)
    served.server.set_capacity(DEVICE, 8 * GIB)
    served.server.set_group("small", resident=GIB)
    return served.path


def asks(client: RawClient, fixed: int) -> int:
    """What becomes of a request for room once so much is charged."""
    client.ledger.put("slots", fixed, index=client.slot)
    client.send(wire.ROOM, epoch=1)
    wire.eventually(lambda: client.residency.get("answered", size=4) == 1)
    return client.residency.get("admission", size=4)


def test_what_never_fits_is_refused_where_nothing_can_move(path: str) -> None:
    client = RawClient(path).attach()
    assert asks(client, 9 * GIB) == wire.CAPACITY


@pytest.mark.parametrize("movable", [0, GIB // 2])
def test_nobody_waits_for_a_group_that_is_beyond_its_own_limit(path: str, movable: int) -> None:
    """As one is with the contexts of its programs alone, where the limit is below what they take."""
    beyond = RawClient(path, "small").attach()
    beyond.send(wire.ADMIT, value=movable, epoch=1)
    wire.eventually(lambda: beyond.residency.get("answered", size=4) == 1)
    beyond.ledger.put("slots", 2 * GIB, index=beyond.slot)
    beyond.send(wire.MOVED)
    assert asks(RawClient(path, "other").attach(), GIB) == wire.GRANTED
