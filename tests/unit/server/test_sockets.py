"""Sockets that fix the group of every client that comes through them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.server import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served


def test_a_socket_can_be_taken_away_and_its_clients_stay(serve: Callable[..., Served], tmp_path: Path) -> None:
    s = serve()
    s.server.set_group("pod", memory=4096)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    s.server.listen(first, "pod", 0o666)
    client = wire.RawClient(first, "some other group").attach()
    assert s.groups()["pod"]["clients"], "the socket decides, not the client"
    assert s.server.unlisten(first)
    assert not s.server.unlisten(first)
    assert not Path(first).exists()
    s.server.listen(second, "pod", 0o666)
    wire.RawClient(second).attach()
    assert len(s.groups()["pod"]["clients"]) == 2
    client.close()
