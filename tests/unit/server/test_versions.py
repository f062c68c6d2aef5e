"""A daemon serves hooks of its own version and of the one before, each in its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served


@pytest.mark.parametrize("version", range(wire.OLDEST, wire.VERSION + 1))
def test_it_is_answered_in_its_version(serve: Callable[..., Served], version: int) -> None:
    client = RawClient(serve().path, join=False, version=version)
    assert client.ask(wire.HELLO, group=b"g", flags=wire.CREATE_GROUP).version == version
    assert client.attach().page.get("attached", size=4) == 1
    client.send(wire.REQUEST, epoch=client.epoch)
    client.await_state(wire.RUN)


@pytest.mark.parametrize("version", [0, wire.OLDEST - 1, wire.VERSION + 1, 65535])
def test_no_other_is_served(serve: Callable[..., Served], version: int) -> None:
    client = RawClient(serve().path, join=False, version=version)
    answer = client.ask(wire.HELLO, group=b"g", flags=wire.CREATE_GROUP)
    assert (answer.status, answer.version) == (wire.MISMATCH, wire.VERSION)
    assert f"the hook version {version}" in answer.text
    with pytest.raises(ConnectionError):
        client.receive()


def test_a_client_that_changes_its_version_is_dropped(serve: Callable[..., Served]) -> None:
    client = RawClient(serve().path, version=wire.OLDEST)
    client.version = wire.VERSION
    with pytest.raises(ConnectionError):
        client.ask(wire.ATTACH)


def test_one_that_is_turned_away_can_read_why_whatever_its_version(serve: Callable[..., Served]) -> None:
    served = serve(connections=1)
    RawClient(served.path)
    answer = RawClient(served.path, join=False).receive()
    assert (answer.status, answer.version) == (wire.FULL, wire.OLDEST)
