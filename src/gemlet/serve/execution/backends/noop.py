"""Runs nothing: an output is the input of the same place. What an executor costs beside its models."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gemlet.inference_protocol.tensors import ELEMENTS, LENGTH_BYTES
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.protocol import check_outputs
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.execution.backend import BackendOptions, GpuLet
    from gemlet.serve.models.specification import ModelSpec, TensorSpec


class NoopBackend:
    """Any number of gpu-lets, no device."""

    name = "noop"
    note = "nothing is computed"

    def __init__(self) -> None:
        self._models: dict[str, ModelSpec] = {}
        self._gpu_lets: frozenset[str] = frozenset()

    def load(self, model: ModelSpec) -> int:
        self._models[model.key] = model
        return 0

    def unload(self, model: str) -> None:
        self._models.pop(model, None)

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        self._gpu_lets = frozenset(gpu_let.name for gpu_let in gpu_lets)

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        if gpu_let not in self._gpu_lets or model not in self._models:
            raise GpuLetGone(f"there is no gpu-let {gpu_let} that serves {model}")
        return echo(self._models[model], inputs, batch)

    def close(self) -> None:
        pass


def echo(spec: ModelSpec, inputs: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """The inputs in place of the outputs: each the input of the same place if that has its datatype, else zeros."""
    given = {tensor.name: tensor for tensor in spec.inputs}
    outputs = {}
    for number, output in enumerate(spec.outputs):
        twin = spec.inputs[number] if number < len(spec.inputs) else None
        same = twin is not None and given[twin.name].datatype == output.datatype and twin.shape == output.shape
        outputs[output.name] = inputs[twin.name] if twin is not None and same else zeros(spec, output, batch)
    return outputs


def zeros(spec: ModelSpec, output: TensorSpec, batch: int) -> np.ndarray:
    """Zeros of the declared shape; a size that may be any is 1. Raises ModelError."""
    shape = [1 if size == -1 else size for size in output.shape]
    whole = [batch, *shape] if spec.max_batch else shape
    if output.datatype != "BYTES" and output.datatype not in ELEMENTS:
        raise ModelError(f"output {output.name!r} of {spec.name}: no datatype {output.datatype!r}")
    size, dtype = ELEMENTS.get(output.datatype, (LENGTH_BYTES, "O"))
    check_outputs(prod(whole) * size)  # now: it would be found after minutes, or take all memory
    if output.datatype == "BYTES":
        empty = np.empty(whole, dtype=dtype)
        empty.fill(b"")
        return empty
    return np.zeros(whole, dtype=dtype)


def create(_options: BackendOptions) -> NoopBackend:
    return NoopBackend()
