"""A model of a repository as something a GPU's streams can run, whatever file it comes in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from gemlet.serve.execution import other_runtimes
from gemlet.serve.execution.model_file import beside, imported
from gemlet.serve.models import build
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.models.specification import ModelSpec

# platform -> the file in the version's directory
FILES = {
    "torch_export": "model.pt2",
    "torchscript": "model.pt",
    "python": "model.py",
    "onnx": "model.onnx",
    "tensorrt": "model.plan",
}

# Datatypes of the Open Inference Protocol as torch and numpy call them.
TORCH: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
NUMPY: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(np.uint16 if name == "BF16" else str(dtype).removeprefix("torch.")) for name, dtype in TORCH.items()
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """One of the two. module: from tensors in the order of the specification's inputs to a tensor, a tuple or a
    dictionary of them. infer: from arrays on the host to arrays on the host, on whatever stream is torch's current one.
    """

    module: Callable[..., object] | None = None
    infer: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] | None = None


def load(spec: ModelSpec, device: str = "cuda") -> Loaded:
    """A model.py has ``module()``, which returns a torch module; or ``infer(inputs)`` or ``load(spec)`` as on the CPU,
    which then runs without CUDA graphs. Raises ModelError."""
    if spec.platform == "builtin":
        return Loaded(build(spec.parameters.get("model", spec.name), device))
    if spec.platform not in FILES:
        hint = "serve it from another repository with --executor cpu"
        raise ModelError(f"{spec.name}: {spec.platform} models do not run on this backend", hint=hint)
    file = Path(spec.directory, str(spec.version), spec.file or FILES[spec.platform])
    if not file.is_file():
        raise ModelError(f"{spec.name}: there is no {file}")
    try:
        if spec.platform == "torch_export":
            return Loaded(torch.export.load(file).module().to(device))
        if spec.platform == "torchscript":
            return Loaded(torch.jit.load(file, map_location=device).eval())
        if spec.platform == "onnx":
            return Loaded(infer=other_runtimes.onnx(spec, file))
        if spec.platform == "tensorrt":
            return Loaded(infer=other_runtimes.tensorrt(spec, file, TORCH))
        with beside(file.parent):
            return _python(spec, file, device)
    except ModelError:
        raise
    except Exception as error:
        message = str(error).strip().splitlines() or [""]
        raise ModelError(f"{spec.name}: {file} cannot be loaded: {type(error).__name__}: {message[0]}") from error


def _python(spec: ModelSpec, file: Path, device: str) -> Loaded:
    module = imported(spec, file)
    if hasattr(module, "module"):
        made = module.module()
        return Loaded(made.eval().requires_grad_(False).to(device) if isinstance(made, torch.nn.Module) else made)
    if hasattr(module, "infer"):
        return Loaded(infer=module.infer)
    if hasattr(module, "load"):
        return Loaded(infer=module.load(spec))
    hint = "define module(), which returns a torch.nn.Module"
    raise ModelError(f"{file} defines no module, infer or load", hint=hint)
