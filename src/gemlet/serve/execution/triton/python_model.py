"""A model.py with the class TritonPythonModel: made, asked, ended.

A batch is a list of requests here, each with its own tensors, and comes to a list of responses. One that is an error
fails its own request only.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.serve.execution.model_file import beside, imported
from gemlet.serve.execution.triton import backend_utils
from gemlet.serve.execution.triton.responses import Failure
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.protocol import RequestInfo
    from gemlet.serve.execution.triton.backend_utils import Surroundings
    from gemlet.serve.execution.triton.responses import Response
    from gemlet.serve.models.specification import ModelSpec

MODULE = "triton_python_backend_utils"


class PythonModel:
    """Raises ModelError, or whatever the model's own code raises. ``device``: index of the GPU; None: on the CPU."""

    def __init__(self, spec: ModelSpec, around: Surroundings, device: int | None) -> None:
        self.spec = spec
        self._known = [output.name for output in spec.outputs]
        self._around = around
        folder = Path(spec.directory, str(spec.version))
        with beside(folder), self._here():
            self._model = model_class(spec, folder / (spec.file or "model.py"))()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._arguments(device))
        if not hasattr(self._model, "execute"):
            raise ModelError(f"{spec.name}: TritonPythonModel has no execute(requests)")

    def execute(self, batch: Sequence[tuple[RequestInfo, Mapping[str, np.ndarray]]]) -> list[Response]:
        """A response for each request. Raises ModelError, or whatever the model raises."""
        requests = [self._request(about, arrays) for about, arrays in batch]
        with self._here():
            responses = self._model.execute(requests)
            if inspect.iscoroutine(responses):
                responses = asyncio.run(responses)
        found = list(responses) if responses is not None else []
        if len(found) != len(requests):
            raise ModelError(f"execute gave {len(found)} responses for {len(requests)} requests")
        known = self._known
        return [_response(each, about.outputs or known) for each, (about, _) in zip(found, batch, strict=True)]

    def finalize(self) -> None:
        """Before it is dropped."""
        if hasattr(self._model, "finalize"):
            with self._here():
                self._model.finalize()

    @contextmanager
    def _here(self) -> Iterator[None]:
        token = backend_utils.current.set(self._around)
        try:
            yield
        finally:
            backend_utils.current.reset(token)

    def _arguments(self, device: int | None) -> dict[str, str]:
        spec = self.spec
        return {
            "model_config": spec.configuration,
            "model_instance_kind": "CPU" if device is None else "GPU",
            "model_instance_name": f"{spec.name}_0_0",
            "model_instance_device_id": str(device or 0),
            "model_repository": spec.directory,
            "model_version": str(spec.version),
            "model_name": spec.name,
        }

    def _request(self, about: RequestInfo, arrays: Mapping[str, np.ndarray]) -> backend_utils.InferenceRequest:
        return backend_utils.InferenceRequest(
            about.id,
            inputs=[backend_utils.Tensor(name, array) for name, array in arrays.items()],
            requested_output_names=about.outputs or self._known,
            model_name=self.spec.name,
            model_version=self.spec.version,
            timeout=about.timeout_us,
            parameters=about.parameters or "{}",
        )


def model_class(spec: ModelSpec, path: Path) -> Any:
    """The class of a model.py. Within `beside`. Raises ModelError, or whatever the file raises."""
    sys.modules.setdefault(MODULE, backend_utils)
    found = getattr(imported(spec, path), "TritonPythonModel", None)
    if found is None:
        raise ModelError(f"{path} defines no class TritonPythonModel")
    return found


def _response(given: Any, wanted: Sequence[str]) -> Response:
    if not isinstance(given, backend_utils.InferenceResponse):
        hint = "return one InferenceResponse for each request; decoupled models are not served"
        raise ModelError(f"execute gave a {type(given).__name__} in place of an InferenceResponse", hint=hint)
    error = given.error()
    if error is not None:
        return Failure(str(error.message()), str(error.code_name()))
    found: dict[str, np.ndarray] = {}
    for tensor in given.output_tensors():
        name = tensor.name()
        if name in wanted:
            found[name] = tensor.array
    return found
