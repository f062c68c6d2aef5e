"""How a model's files become a function from input arrays to output arrays, on the CPU, by platform.

A model.py has ``infer(inputs) -> outputs``, dictionaries of numpy arrays; or ``load(spec)`` that returns such a
function; or ``module()`` that returns a torch module. torch and ONNX Runtime are imported for models that need them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemlet.serve.execution import onnx_model
from gemlet.serve.execution.backends import noop
from gemlet.serve.execution.model_file import beside, imported
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from types import ModuleType

    from gemlet.serve.models.specification import ModelSpec

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], Arrays]


def load(model: ModelSpec) -> Runner:
    """The function of a model. Raises ModelError, or whatever its files raise."""
    loaders: dict[str, Callable[[ModelSpec], Runner]] = {
        "python": _python,
        "torchscript": _torchscript,
        "torch_export": _torch_export,
        "onnx": _onnx,
        "builtin": _builtin,
        "noop": _noop,
    }
    if model.platform not in loaders:
        raise ModelError(f"{model.name}: {model.platform} models do not run on the CPU")
    with beside(Path(model.directory, str(model.version))):
        return loaders[model.platform](model)


def _file(model: ModelSpec, name: str) -> Path:
    return Path(model.directory, str(model.version), model.file or name)


def _python(model: ModelSpec) -> Runner:
    path = _file(model, "model.py")
    module = imported(model, path)
    if hasattr(module, "infer"):
        return module.infer  # type: ignore[no-any-return]
    if hasattr(module, "load"):
        return module.load(model)  # type: ignore[no-any-return]
    if hasattr(module, "module"):
        return _torch_runner(model, module.module())
    hint = "define infer(inputs), which takes and returns dictionaries of numpy arrays by name"
    raise ModelError(f"{path} defines no infer, load or module", hint=hint)


def _torch(model: ModelSpec) -> ModuleType:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ModelError(
            f"{model.name} needs torch, which is not installed", hint="pip install 'gemlet[torch]'"
        ) from None


def _torchscript(model: ModelSpec) -> Runner:
    torch = _torch(model)
    return _torch_runner(model, torch.jit.load(str(_file(model, "model.pt")), map_location="cpu"))


def _torch_export(model: ModelSpec) -> Runner:
    _torch(model)
    export = importlib.import_module("torch.export")
    return _torch_runner(model, export.load(str(_file(model, "model.pt2"))).module(), evaluate=False)


def _builtin(model: ModelSpec) -> Runner:
    _torch(model)
    try:
        models = importlib.import_module("gemlet.serve.models")
    except ModuleNotFoundError as error:
        raise ModelError(f"{model.name}: models built from code are not available: no module {error.name!r}") from None
    return _torch_runner(model, models.build(model.parameters.get("model", model.name)))


def _torch_runner(model: ModelSpec, module: Any, *, evaluate: bool = True) -> Runner:
    """Inputs in the order of the configuration, outputs likewise: one tensor, or a list, tuple or dictionary."""
    torch = _torch(model)
    if evaluate:
        module.eval()

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            given = [torch.from_numpy(np.array(inputs[tensor.name])) for tensor in model.inputs]
            answer = module(*given)
        if isinstance(answer, dict):
            return {name: tensor.numpy() for name, tensor in answer.items()}
        several = answer if isinstance(answer, list | tuple) else [answer]
        return {tensor.name: each.numpy() for tensor, each in zip(model.outputs, several, strict=True)}

    return run


def _onnx(model: ModelSpec) -> Runner:
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        hint = "pip install 'gemlet[onnx]'"
        raise ModelError(f"{model.name} needs ONNX Runtime, which is not installed", hint=hint) from None
    session = runtime.InferenceSession(str(_file(model, "model.onnx")), providers=["CPUExecutionProvider"])
    return onnx_model.runner(model, session)


def _noop(model: ModelSpec) -> Runner:
    def run(inputs: Arrays) -> Arrays:
        return noop.echo(model, inputs, len(next(iter(inputs.values()))) if model.max_batch else 1)

    return run
