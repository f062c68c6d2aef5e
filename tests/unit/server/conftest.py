from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

native = pytest.importorskip("gemlet._native", reason="the native module is not built")


class Served:
    """A server and the clients a test made on it. Everybody takes turns, unless ``open`` is among the options."""

    def __init__(self, path: Path, **options: object) -> None:
        self.server = native.Server(**{"open": False, **options})
        self.path = str(path / "s")
        self.server.listen(self.path)
        self.server.start()

    def groups(self) -> dict[str, dict[str, object]]:
        return {g["name"]: g for d in self.server.snapshot()["devices"] for g in d["groups"]}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def make(**options: object) -> Served:
        served.append(Served(tmp_path, **options))
        return served[-1]

    yield make
    wire.end_all()
    for s in served:
        s.server.stop()
