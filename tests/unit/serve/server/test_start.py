"""A server that cannot work says so before it says that it is ready."""

from __future__ import annotations

import asyncio
import multiprocessing.synchronize  # noqa: F401  reads what the test replaces
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from gemlet.errors import GemletError
from gemlet.serve.execution.process_settings import SWITCH_INTERVAL
from gemlet.serve.server.frontend.logs import LogTail
from gemlet.serve.server.options import ServerOptions
from gemlet.serve.server.server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.server.server import Started


CONFIG = """\
platform: noop
slo: 20s
inputs:
  - {name: X, datatype: FP32, shape: [1]}
outputs:
  - {name: Y, datatype: FP32, shape: [1]}
"""


def test_no_thread_keeps_the_event_loop_waiting_for_as_long_as_python_would(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        asyncio.run(_made(tmp_path))
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    finally:
        sys.setswitchinterval(before)


async def _made(repository: Path) -> Server:
    return Server(ServerOptions(repository=repository, executor="noop", http_port=0, grpc_port=None), LogTail())


def test_a_full_dev_shm_is_found_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    model = tmp_path / "identity"
    (model / "1").mkdir(parents=True)
    (model / "config.yaml").write_text(CONFIG)
    monkeypatch.setattr("_multiprocessing.SemLock", refuse)
    ready: list[Started] = []

    async def run() -> None:
        options = ServerOptions(repository=tmp_path, executor="noop", http_port=0, grpc_port=None)
        stop = asyncio.Event()

        def tell(started: Started) -> None:
            ready.append(started)
            stop.set()

        await Server(options, LogTail()).run(stop, tell)

    with pytest.raises(GemletError, match=r"/dev/shm: .*No space left"):
        asyncio.run(run())
    assert not ready
