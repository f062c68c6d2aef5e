"""A device and its executors' processes, as `gemlet serve` has them, for the threads of bench/serving_live.py.

What a batch takes here has its way to the executor's process and back in it: messages, shared memory, and an event
loop, which runs in a thread of its own. With `mps` each gpu-let is a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import uvloop

from gemlet.serve.execution.backend import BackendOptions
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import ExecutorDied, Input

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.backend import GpuLet
    from gemlet.serve.execution.executor import Executor, Result
    from gemlet.serve.models.specification import ModelSpec

READY_S = 120.0  # for the executors of a plan: processes that import torch and capture graphs
BATCH_S = 10.0  # for one batch


class Executors:
    """A context manager. profiles: JSON, for modelled time. environment: what its processes have beside ours."""

    def __init__(self, backend: str, profiles: str = "", environment: Mapping[str, str] | None = None) -> None:
        self.name = backend
        self.loaded: dict[str, ModelSpec] = {}
        self.prepared_ms = 0.0
        self._environment = dict(environment or {})
        self._options = BackendOptions(device=0, profiles=profiles)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="executors", daemon=True)
        self._ends = contextlib.AsyncExitStack()
        self._died: list[str] = []
        self._device: Device

    def __enter__(self) -> Executors:
        self._thread.start()
        self._wait(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._ends.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def slower(self) -> list[str]:
        return self._device.slower

    def graphs(self) -> list[dict[str, object]]:
        """The executors know them, and say what is missing."""
        return []

    def load(self, model: ModelSpec) -> None:
        """It is loaded by the executors of the gpu-lets that serve it."""
        self.loaded[model.key] = model

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        """Raises GemletError."""
        began = self._loop.time()
        self._wait(self._prepare(gpu_lets))
        self.prepared_ms = 1000 * (self._loop.time() - began)

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
        """The answers stay where they are: nobody reads them. Raises GemletError."""
        given = [
            Input(tensor.name, tensor.datatype, array.shape, [array.data.cast("B")], array.nbytes)
            for tensor in self.loaded[model].inputs
            for array in (inputs[tensor.name],)
        ]
        answered: Future[Result] = Future()
        self._loop.call_soon_threadsafe(self._send, answered, gpu_let, model, given, batch)
        answered.result(BATCH_S)
        return {}

    def _send(self, answered: Future[Result], gpu_let: str, model: str, given: list[Input], batch: int) -> None:
        def came(future: asyncio.Future[Result]) -> None:
            error = future.exception()
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(future.result())

        try:
            self._device.executor(gpu_let).run(gpu_let, model, given, batch).add_done_callback(came)
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            answered.set_exception(error)

    async def _start(self) -> None:
        tasks = await self._ends.enter_async_context(asyncio.TaskGroup())
        self._device = Device(0, self.name, self._options, tasks, on_died=self._lost, on_back=lambda _new, _old: None)
        self._ends.push_async_callback(self._device.close)
        with _surrounded(self._environment):
            await self._device.start()

    async def _prepare(self, gpu_lets: Sequence[GpuLet]) -> None:
        if self._died:
            raise ExecutorDied(f"{', '.join(self._died)} died")
        async with asyncio.timeout(READY_S):
            wanted = {key: self.loaded[key] for gpu_let in gpu_lets for key in gpu_let.models}
            with _surrounded(self._environment):
                await self._device.prepare(wanted, gpu_lets)
            await self._device.retire(frozenset(wanted))

    def _lost(self, executor: Executor) -> None:
        self._died.append(executor.name)

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextlib.contextmanager
def _surrounded(environment: Mapping[str, str]) -> Iterator[None]:
    """Processes that start meanwhile have these variables, and this one has what it had afterwards."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
