"""Groups that are bound to devices: the limits hold on each device, so elsewhere they would hold once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.server.conftest import Served

OWN, OTHER = b"h" * 16, b"t" * 16


def test_programs_of_a_group_that_is_bound_have_no_other_device(serve: Callable[..., Served], tmp_path: Path) -> None:
    s = serve()
    path = str(tmp_path / "pod")
    s.server.set_group("pod", memory=1 << 30)
    assert s.server.bind_group("pod", [OWN])
    s.server.listen(path, "pod", 0o600)
    client = RawClient(path).attach(OWN)
    answer = client.ask(wire.ATTACH, uuid=OTHER)
    assert answer.status != wire.OK
    assert "is bound to other devices" in answer.text
    client.ask(wire.ATTACH, uuid=OWN)  # attached already: it is still spoken with
    assert [d["uuid"] for d in s.server.snapshot()["devices"]] == [OWN]
    s.server.set_group("pod", memory=2 << 30)
    assert RawClient(path).ask(wire.ATTACH, uuid=OTHER).status != wire.OK, "other limits, the same devices"
    s.server.bind_group("pod", [])
    RawClient(path).attach(OTHER)


def test_no_group_of_that_name_is_bound(serve: Callable[..., Served]) -> None:
    s = serve()
    assert not s.server.bind_group("nobody", [OWN])
    RawClient(s.path, "g").attach(OTHER)
