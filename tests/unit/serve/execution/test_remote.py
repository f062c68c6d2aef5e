"""An executor on another machine: this one, over TCP, without shared memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gemlet.errors import UsageError
from gemlet.serve.execution import hosting
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.execution.executor import Executor, ExecutorDied, ExecutorFailed, Input
from gemlet.serve.execution.hosting import MOST_SILENT, Endpoint, Host
from gemlet.serve.execution.ray_placement import Cluster
from gemlet.serve.execution.remote import RemoteExecutor
from gemlet.serve.models.specification import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Here:
    """A placement on this machine."""

    def __init__(self) -> None:
        self.host = Host()
        self.endpoints: list[Endpoint] = []

    async def start(self, backend: str, environment: Mapping[str, str]) -> Endpoint:
        found = await asyncio.to_thread(self.host.start, backend, dict(environment), "127.0.0.1")
        self.endpoints.append(found)
        return found

    async def stop(self) -> None:
        await asyncio.to_thread(self.host.stop)


LONG = BackendOptions(profiles=json.dumps({"filler": "x" * (1 << 20)}))


def noop_model() -> ModelSpec:
    tensors = (TensorSpec("X", "FP32", (4,)),)
    return ModelSpec(
        name="m", directory="", platform="noop", inputs=tensors, outputs=(TensorSpec("Y", "FP32", (4,)),), max_batch=8,
        slo_ms=1000.0,
    )  # fmt: skip


async def started(placement: Here) -> RemoteExecutor:
    executor = RemoteExecutor("remote", "noop", BackendOptions(device=0), placement)
    await executor.start()
    await executor.load(noop_model())
    await executor.partition([GpuLet(name="gpu0/let0", sm=1.0, models={"m": 8})])
    return executor


def batch(rows: int) -> list[Input]:
    data = np.arange(4 * rows, dtype=np.float32).tobytes()
    return [Input("X", "FP32", (rows, 4), [data], len(data))]


def test_connections_without_the_token_keep_nobody_waiting() -> None:
    class Beside(Here):
        """Where others were first."""

        def __init__(self) -> None:
            super().__init__()
            self.others: list[socket.socket] = []

        async def start(self, backend: str, environment: Mapping[str, str]) -> Endpoint:
            found = await super().start(backend, environment)
            for number in range(2 * MOST_SILENT):
                self.others.append(socket.create_connection((found.host, found.port), 60))
                self.others[-1].sendall(found.token.encode()[: number % 5])
            self.others[0].settimeout(60)
            assert not self.others[0].recv(1)
            return found

    async def run() -> None:
        placement = Beside()
        executor = await started(placement)
        for other in placement.others:
            other.settimeout(60)
            with suppress(ConnectionResetError):
                assert not other.recv(1)
            other.close()
        await executor.close()

    asyncio.run(run())


def test_batches_go_there_and_back() -> None:
    async def run() -> None:
        placement = Here()
        executor = await started(placement)
        try:
            result = await executor.run("gpu0/let0", "m", batch(3), 3)
            ((tensor, data),) = result.outputs
            assert (tensor.name, tensor.shape, len(data)) == ("Y", (3, 4), 48)
            many = await asyncio.gather(*(executor.run("gpu0/let0", "m", batch(8), 8) for _ in range(50)))
            assert len(many) == 50
        finally:
            await executor.close()
        assert executor.died.is_set()

    asyncio.run(run())


def test_profiles_have_no_longest_size() -> None:
    """An argument of a command line has: 128 KiB."""

    async def run() -> None:
        placement = Here()
        executors = [
            Executor("here", "noop", LONG, arena_bytes=1 << 20), RemoteExecutor("remote", "noop", LONG, placement)
        ]  # fmt: skip
        for executor in executors:
            await executor.start()
            await executor.close()
            assert executor.backend == "noop"

    asyncio.run(run())


def test_a_process_that_dies_is_noticed_and_another_takes_its_place() -> None:
    async def run() -> None:
        placement = Here()
        first = await started(placement)
        os.kill(placement.endpoints[0].pid, 9)
        await asyncio.wait_for(first.died.wait(), 30)
        with pytest.raises(ExecutorDied):
            await first.load(noop_model())
        second = await started(placement)
        await second.run("gpu0/let0", "m", batch(1), 1)
        await second.close()

    asyncio.run(run())


def test_a_process_that_never_opens_its_port_is_ended_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks a host again that waits for it, and would hear nothing of that either."""
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(3600)\n")
    host = Host()

    def start() -> None:
        with pytest.raises(OSError, match="did not within"):
            host.start("noop", {"PYTHONPATH": str(tmp_path)}, "127.0.0.1")

    with monkeypatch.context() as patched:
        patched.setattr(hosting, "OPEN_SECONDS", 0.2)
        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        starting.join(60)
        assert not starting.is_alive()
    assert host.start("noop", {}, "127.0.0.1").port
    host.stop()


def test_a_process_that_is_told_to_end_does_so_in_order() -> None:
    class Awaited(Here):
        async def stop(self) -> None:
            process = self.host._process
            assert process is not None
            assert await asyncio.to_thread(process.wait, 60) == 0
            await super().stop()

    async def run() -> None:
        executor = await started(Awaited())
        await executor.close()

    asyncio.run(run())


def test_a_cluster_without_nodes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = ModuleType("ray")
    vars(ray).update(init=lambda **_: None, nodes=lambda: [{"Alive": False}])
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(UsageError, match="no node"):
        Cluster("auto").places("cpu")


def test_the_process_ends_with_its_host() -> None:
    async def run() -> None:
        placement = Here()
        executor = await started(placement)
        process = placement.host._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()  # what happens when the host is killed
        await asyncio.wait_for(executor.died.wait(), 30)
        await executor.close()

    asyncio.run(run())


def test_a_client_without_the_token_is_not_heard() -> None:
    async def run() -> None:
        placement = Here()
        options = BackendOptions(device=0)
        stranger: list[bytes] = []

        class Listening(Here):
            async def start(self, backend: str, environment: Mapping[str, str]) -> Endpoint:
                found = await super().start(backend, environment)

                def intrude() -> None:
                    with socket.create_connection((found.host, found.port), timeout=30) as connection:
                        connection.sendall(b"0" * len(found.token))
                        stranger.append(connection.recv(1))

                await asyncio.to_thread(intrude)
                return found

        placement = Listening()
        executor = RemoteExecutor("remote", "noop", options, placement)
        await executor.start()  # who knows it still is
        await executor.close()
        assert stranger == [b""]

    asyncio.run(run())


def test_a_backend_that_is_not_there_is_an_error_with_a_message() -> None:
    async def run() -> None:
        placement = Here()
        executor = RemoteExecutor("remote", "nonsense", BackendOptions(device=0), placement)
        with pytest.raises(ExecutorFailed, match="nonsense"):
            await executor.start()
        await placement.stop()

    asyncio.run(run())
