"""Runs models on the CPU: Python files with numpy always, torch and ONNX Runtime models where those are installed.

gpu-lets are threads here: shares of SMs have no meaning on a CPU, and are ignored.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.backends import cpu_runners, modelled
from gemlet.serve.execution.warm_up import warm_up
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.backend import BackendOptions, GpuLet
    from gemlet.serve.execution.backends.cpu_runners import Runner
    from gemlet.serve.models.specification import ModelSpec


class CpuBackend:
    """This machine's processor as a device. Models of platform `modelled` take their time here, too."""

    name = "cpu"

    def __init__(self, options: BackendOptions) -> None:
        self.note = f"{os.cpu_count()} CPUs; shares of SMs have no effect"
        self._runners: dict[str, tuple[str, Runner]] = {}  # by key: name and function
        self._gpu_lets: frozenset[str] = frozenset()
        self._modelled = modelled.create(options)

    def load(self, model: ModelSpec) -> int:
        if model.platform == "modelled":
            return self._modelled.load(model)
        try:
            runner = cpu_runners.load(model)
            warm_up(model, lambda inputs, _rows: runner(inputs))
            self._runners[model.key] = model.name, runner
        except GemletError:
            raise
        except BaseException as error:
            raise ModelError(f"{model.name} cannot be loaded: {type(error).__name__}: {error}") from error
        return 0

    def unload(self, model: str) -> None:
        self._runners.pop(model, None)
        self._modelled.unload(model)

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        self._gpu_lets = frozenset(gpu_let.name for gpu_let in gpu_lets)
        self._modelled.partition(gpu_lets)

    @contextmanager
    def around(self, gpu_let: str) -> Iterator[None]:
        """Where code of the host runs for a gpu-let. Raises GpuLetGone."""
        if gpu_let not in self._gpu_lets:
            raise GpuLetGone(f"there is no gpu-let {gpu_let}")
        yield

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        known = self._runners.get(model)
        if known is None:
            return self._modelled.run(gpu_let, model, inputs, batch)
        name, runner = known
        if gpu_let not in self._gpu_lets:
            raise GpuLetGone(f"there is no gpu-let {gpu_let}")
        try:
            return runner(inputs)
        except GemletError:
            raise
        except BaseException as error:
            raise ModelError(f"{name} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        pass


def create(options: BackendOptions) -> CpuBackend:
    return CpuBackend(options)
