"""Batches that a model runs before its first request, where its configuration names some."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemlet.config.text_file import read_bytes
from gemlet.errors import GemletError
from gemlet.inference_protocol import tensors
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.models.specification import ModelSpec, TensorSpec

ZERO, RANDOM = "zero", "random"
MAX_FILE_BYTES = 1024**3  # for all rows of a sample
FOLDER = "warmup"  # of a model, with the files that samples name


def warm_up(model: ModelSpec, run: Callable[[Mapping[str, np.ndarray], int], object]) -> None:
    """Runs all of them: ``run`` gets the inputs and how many rows those have. Raises ModelError if one fails."""
    for sample in model.warm_up:
        try:
            given = {tensor.name: _array(model, tensor, fill, sample.rows) for tensor, fill in sample.inputs}
            for _ in range(max(1, sample.count)):
                run(given, max(1, sample.rows))
        except Exception as error:
            told = error.message if isinstance(error, GemletError) else f"{type(error).__name__}: {error}"
            raise ModelError(f"{model.name}: warm-up {sample.name!r} failed: {told}") from error


def _array(model: ModelSpec, tensor: TensorSpec, fill: str, rows: int) -> np.ndarray:
    """Of these rows, all alike where a file fills them."""
    shape = (rows, *tensor.shape) if model.max_batch else tensor.shape
    if fill not in {ZERO, RANDOM}:
        data = read_bytes(Path(model.directory, FOLDER, fill), MAX_FILE_BYTES // max(1, rows))
        return tensors.to_array(data * (rows if model.max_batch else 1), tensor.datatype, shape)
    if tensor.datatype == "BYTES":
        array = np.empty(shape, dtype=object)
        array.fill(b"" if fill == ZERO else b"warm")
        return array
    kind = np.dtype(tensors.ELEMENTS[tensor.datatype][1])
    if fill == ZERO:
        return np.zeros(shape, dtype=kind)
    chance = np.random.default_rng(prod(shape))
    if kind.kind != "f":
        return chance.integers(0, 2, shape, dtype=kind.type)
    return chance.random(shape, dtype=np.float64 if kind.itemsize == 8 else np.float32).astype(kind, copy=False)
