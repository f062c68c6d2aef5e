"""A session of ONNX Runtime, on whatever it runs, as a function of arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from gemlet.serve.models.specification import ModelSpec

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], Arrays]


def runner(model: ModelSpec, session: Any) -> Runner:
    """A session as a function. Raises ModelError if it has other inputs or outputs than the configuration."""
    for what, said, there in (
        ("input", model.inputs, session.get_inputs()),
        ("output", model.outputs, session.get_outputs()),
    ):
        known = {each.name for each in there}
        for tensor in said:
            if tensor.name not in known:
                raise ModelError(f"{model.name}: its file has no {what} {tensor.name!r}; it has {', '.join(known)}")
    names = [output.name for output in model.outputs]

    def run(inputs: Arrays) -> Arrays:
        given = {name: _texts(array) if array.dtype == object else array for name, array in inputs.items()}
        return dict(zip(names, session.run(names, given), strict=True))

    return run


def _texts(array: np.ndarray) -> np.ndarray:
    """ONNX Runtime's strings are text, not bytes."""
    return np.array([each.decode() for each in array.flat], dtype=object).reshape(array.shape)
