"""Requests that a model sends to others: to one of its gpu-let at once, in the same thread; else through the server.

A model that waits holds its gpu-let. One that takes turns with it there could never answer, so that one is run in the
thread that waits. Any other goes into its queue as if a client had asked; the server knows who waits for whom by the
number of the batch, and sees to it that nobody waits for itself. Models that ask each other without end are stopped by
the length of their chain.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gemlet.inference_protocol import tensors
from gemlet.serve.execution import protocol
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from gemlet.serve.models.specification import ModelSpec


MAX_DEPTH = 16  # models of a chain of requests, each of which waits for the next one


class Host(Protocol):
    """The executor that runs the model."""

    def neighbour(self, model: str, version: str) -> str | None:
        """The key of another model of this thread's gpu-let."""
        ...

    def run_here(self, key: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Raises GemletError, or whatever that model raises."""
        ...

    def ready(self, model: str, version: str) -> bool: ...

    @property
    def nesting(self) -> protocol.Nesting:
        """What this thread is at."""
        ...


class Nested:
    """All of an executor. ``send``: a message to the server, from any thread."""

    def __init__(self, send: Callable[[protocol.ToServer], None]) -> None:
        self._send = send
        self._waiting: dict[int, tuple[concurrent.futures.Future[Mapping[str, np.ndarray]], Sequence[str]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def ask(
        self,
        model: str,
        version: str,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        timeout_us: int,
        *,
        batch: int,
        chain: tuple[str, ...],
    ) -> concurrent.futures.Future[Mapping[str, np.ndarray]]:
        """Through the server. The future raises ModelError."""
        future: concurrent.futures.Future[Mapping[str, np.ndarray]] = concurrent.futures.Future()
        number = next(self._numbers)
        nbytes = sum(array.nbytes for array in inputs.values())
        if nbytes > protocol.MAX_NESTED:
            raise ModelError(f"a request to {model} has {nbytes} bytes: expected at most {protocol.MAX_NESTED}")
        # Of these types: what is another in a message costs the whole executor, and 1e6 is a common timeout.
        model, version, timeout_us = str(model), str(version), int(timeout_us)
        given = tuple(_tensor(str(name), array) for name, array in inputs.items())
        with self._lock:
            self._waiting[number] = future, outputs
        try:
            self._send(protocol.Ask(number, model, version, given, timeout_us, batch, chain))
        except BaseException:
            with self._lock:
                self._waiting.pop(number, None)
            raise
        future.add_done_callback(partial(self._done, number))
        return future

    def _done(self, number: int, future: concurrent.futures.Future[Mapping[str, np.ndarray]]) -> None:
        """A coroutine that gave up waiting has cancelled it: the other model need not begin."""
        if future.cancelled():
            with self._lock:
                given_up = self._waiting.pop(number, None) is not None
            if given_up:
                self._send(protocol.Cancel(number))

    def answered(self, message: protocol.Reply) -> None:
        """What the server says to one."""
        with self._lock:
            future, wanted = self._waiting.pop(message.number, (None, ()))
        if future is None or not future.set_running_or_notify_cancel():  # it was given up, just now perhaps
            return
        if message.error is not None:
            future.set_exception(ModelError(message.error))
            return
        try:
            answer = {
                each.name: tensors.to_array(bytearray(each.inline), each.datatype, each.shape)
                for each in message.outputs
                if not wanted or each.name in wanted
            }
        except Exception as error:  # noqa: BLE001  it is the answer
            future.set_exception(error)
        else:
            future.set_result(answer)


class Around:
    """What one model finds around it: backend_utils.Surroundings."""

    def __init__(self, spec: ModelSpec, host: Host, nested: Nested) -> None:
        self.folder = f"{spec.directory}/{spec.version}"
        self._name, self._host, self._nested = spec.name, host, nested

    def ask(
        self, model: str, version: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], timeout_us: int
    ) -> concurrent.futures.Future[Mapping[str, np.ndarray]]:
        nesting = self._host.nesting
        chain = nesting.chain or (self._name,)  # in initialize it is at no batch
        if len(chain) >= MAX_DEPTH:
            told = " -> ".join((*chain, model))
            raise ModelError(f"requests of models to others may be {MAX_DEPTH} models deep: {told}")
        neighbour = self._host.neighbour(model, version)
        if neighbour is None:
            return self._nested.ask(model, version, inputs, outputs, timeout_us, batch=nesting.batch, chain=chain)
        future: concurrent.futures.Future[Mapping[str, np.ndarray]] = concurrent.futures.Future()
        try:
            future.set_result(self._host.run_here(neighbour, inputs, outputs))
        except Exception as error:  # noqa: BLE001  it is the answer
            future.set_exception(error)
        return future

    def ready(self, model: str, version: str) -> bool:
        return self._host.ready(model, version)


def _tensor(name: str, array: np.ndarray) -> protocol.ArenaTensor:
    datatype = tensors.datatype_of(array)
    data = bytes(tensors.to_buffer(array, datatype))
    return protocol.ArenaTensor(name, datatype, tuple(array.shape), -1, len(data), data)
