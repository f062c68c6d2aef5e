from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gemlet.daemon.address import Endpoint
from gemlet.daemon.answers import api
from gemlet.daemon.connection import Connection
from gemlet.daemon.options import DaemonOptions
from gemlet.daemon.service import Service
from gemlet.errors import DaemonUnreachable
from tests.unit.daemon import fakes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class RunningDaemon:
    """A daemon in a thread of this process, with a fake server and fake NVML."""

    service: Service
    server: Any
    inventory: Any
    endpoint: Endpoint
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    def connect(self) -> Connection:
        return Connection(self.endpoint)

    def call(self, op: str, **arguments: Any) -> Any:
        with self.connect() as connection:
            return connection.call(op, **arguments)

    def groups(self) -> dict[str, Any]:
        """What `gemlet status` says of each group, by its name."""
        return {group["name"]: group for group in self.call("status")["groups"]}

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.service.stop)
            self.thread.join(60)
        assert not self.thread.is_alive()


def accepts(endpoint: Endpoint) -> bool:
    with contextlib.suppress(DaemonUnreachable):
        Connection(endpoint).close()
        return True
    return False


class Starter:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.running: list[RunningDaemon] = []

    def __call__(self, **options: Any) -> RunningDaemon:
        endpoint = Endpoint(options.pop("directory", self._directory), options.pop("kind", "user"))
        server, inventory = options.pop("server", None) or fakes.FakeServer(), fakes.FakeInventory()
        ready = threading.Event()
        made: list[Any] = []

        async def live() -> None:
            service = Service(
                DaemonOptions(endpoint=endpoint, **options),
                server=server,
                inventory=inventory,
                metrics=lambda _: "metric 1\n",
            )
            made.extend([service, asyncio.get_running_loop()])
            task = asyncio.ensure_future(service.run(api))
            while not (server.running and accepts(endpoint)) and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            ready.set()
            await task

        thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
        thread.start()
        assert ready.wait(60)
        running = RunningDaemon(made[0], server, inventory, endpoint, made[1], thread)
        self.running.append(running)
        return running


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for daemon in starter.running:
        daemon.stop()
