"""The models of an executor that were written for Triton's Python backend: they run beside the backend's own.

A backend that lets them has ``around(gpu_let)``: a context in which code of the host runs for that gpu-let. Others
(modelled time, no-op) take these models as they take any.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gemlet.errors import GemletError
from gemlet.serve.execution import protocol
from gemlet.serve.execution.triton.responses import Failure
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.serve.execution.backend import GpuLet
    from gemlet.serve.execution.triton.nested import Nested
    from gemlet.serve.execution.triton.python_model import PythonModel
    from gemlet.serve.execution.triton.responses import Response
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger("gemlet.serve.executor")


@dataclass(slots=True, eq=False)
class _Here:
    """The gpu-let for which this thread works, and at what. A model's own threads may know it, too, and longer than it
    lasts; ``running``: held while one of them runs a neighbour."""

    gpu_let: str = ""
    nesting: protocol.Nesting = protocol.OUTERMOST
    over: bool = False
    running: threading.Lock = field(default_factory=threading.Lock)


_NOWHERE = _Here()


class PythonHost:
    """``models``: all of the executor, by key; ``send``: a message to the server, from any thread."""

    def __init__(
        self, backend: Any, models: Mapping[str, ModelSpec], send: Callable[[protocol.ToServer], None]
    ) -> None:
        self._backend = backend
        self._around = getattr(backend, "around", None)
        self._models = models
        self._send = send
        self._nested: Nested | None = None
        self._python: dict[str, PythonModel] = {}
        self._assigned: dict[str, Mapping[str, int]] = {}
        self._here: ContextVar[_Here] = ContextVar("here", default=_NOWHERE)

    def takes(self, model: ModelSpec) -> bool:
        return model.by_request and self._around is not None

    def has(self, key: str) -> bool:
        return key in self._python

    def load(self, model: ModelSpec) -> int:
        """Bytes of device memory: not known of a model that takes it by itself. Raises ModelError."""
        from gemlet.serve.execution.triton import nested, python_model  # noqa: PLC0415  for those who have such a model
        from gemlet.serve.execution.warm_up import warm_up  # noqa: PLC0415

        self._nested = self._nested or nested.Nested(self._send)
        around = nested.Around(model, self, self._nested)
        loaded = python_model.PythonModel(model, around, getattr(self._backend, "device", None))

        def run(inputs: Mapping[str, np.ndarray], rows: int) -> None:
            for response in loaded.execute([(protocol.RequestInfo(rows), inputs)]):
                if isinstance(response, Failure):
                    raise ModelError(response.message)

        warm_up(model, run)
        self._python[model.key] = loaded
        return 0

    def unload(self, key: str) -> bool:
        """Whether it was one of these."""
        model = self._python.pop(key, None)
        if model is None:
            return False
        _finalize(model)
        return True

    def close(self) -> None:
        for key in list(self._python):
            self.unload(key)

    def partition(self, gpu_lets: Sequence[GpuLet]) -> tuple[GpuLet, ...]:
        """What is left of gpu-lets for the backend."""
        self._assigned = {gpu_let.name: gpu_let.models for gpu_let in gpu_lets}
        return tuple(
            msgspec.structs.replace(
                gpu_let, models={key: rows for key, rows in gpu_let.models.items() if key not in self._python}
            )
            for gpu_let in gpu_lets
        )

    def run(
        self,
        gpu_let: str,
        key: str,
        inputs: Mapping[str, np.ndarray],
        requests: Sequence[protocol.RequestInfo],
        nesting: protocol.Nesting = protocol.OUTERMOST,
    ) -> list[Response]:
        """A batch, whose arrays have the rows of its requests one after the other. Raises ModelError, GpuLetGone."""
        model = self._python[key]
        here = _Here(gpu_let, nesting)
        self._here.set(here)
        batch, at = [], 0
        for about in requests:
            end = at + about.rows
            own = {name: array[at:end] for name, array in inputs.items()} if model.spec.max_batch else inputs
            batch.append((about, own))
            at = end
        assert self._around is not None
        with self._around(gpu_let):
            try:
                return model.execute(batch)
            except GemletError:
                raise
            except Exception as error:
                logger.exception("%s failed", model.spec.name)  # its own traceback is what its author needs
                raise ModelError(f"{model.spec.name} failed: {type(error).__name__}: {error}") from error
            finally:
                here.over = True

    # What nested requests ask

    @property
    def nesting(self) -> protocol.Nesting:
        return self._here.get().nesting

    def answered(self, reply: protocol.Reply) -> None:
        assert self._nested is not None
        self._nested.answered(reply)

    def neighbour(self, model: str, version: str) -> str | None:
        """The key of a model that takes turns with this thread's."""
        here = self._here.get()
        for key in self._assigned.get(here.gpu_let, ()) if not here.over else ():
            if _is(self._models.get(key), model, version):
                return key
        return None

    def run_here(self, key: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
        """One request of a neighbour, in this thread's place, one at a time: no model is asked to run twice at once.

        Raises ModelError, or whatever the model raises."""
        with self._here.get().running:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self._run_here(key, inputs, outputs)
            with ThreadPoolExecutor(1) as thread:  # a coroutine cannot run in the loop of another one
                return thread.submit(copy_context().run, self._run_here, key, inputs, outputs).result()

    def _run_here(self, key: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
        spec, here = self._models[key], self._here.get()
        missing = [tensor.name for tensor in spec.inputs if tensor.name not in inputs and not tensor.optional]
        if missing:
            raise ModelError(f"{spec.name} needs the input {missing[0]!r}")
        rows = int(next(iter(inputs.values())).shape[0]) if spec.max_batch and inputs else 1
        if key in self._python:
            nesting = msgspec.structs.replace(here.nesting, chain=(*here.nesting.chain, spec.name))
            inside = _Here(here.gpu_let, nesting)
            token = self._here.set(inside)
            assert self._around is not None
            try:
                with self._around(here.gpu_let):
                    about = protocol.RequestInfo(rows, outputs=tuple(outputs))
                    (response,) = self._python[key].execute([(about, inputs)])
            finally:
                inside.over = True
                self._here.reset(token)
            if isinstance(response, Failure):
                raise ModelError(response.message)
            return response
        gave = self._backend.run(here.gpu_let, key, inputs, rows)
        return {name: np.array(array) for name, array in gave.items() if not outputs or name in outputs}

    def ready(self, model: str, version: str) -> bool:
        """Whether a model is loaded in this executor."""
        return any(_is(spec, model, version) for spec in list(self._models.values()))


def _is(spec: ModelSpec | None, model: str, version: str) -> bool:
    return spec is not None and spec.name == model and (str(spec.version) == version if version else spec.latest)


def _finalize(model: PythonModel) -> None:
    try:
        model.finalize()
    except BaseException as error:  # noqa: BLE001  it goes, whatever it says, SystemExit too
        logger.error("%s: finalize: %s: %s", model.spec.name, type(error).__name__, error)
