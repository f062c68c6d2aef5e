"""`python -m gemlet.serve.execution.triton.completing KIND FILE FOLDER`: what a model's configuration leaves out.

The configuration as JSON comes by standard input, and goes by standard output, completed. What cannot be told ends in
exit code 3 and a line that says why.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from gemlet.errors import GemletError
from gemlet.serve.execution.model_file import beside
from gemlet.serve.models.specification import ModelError, ModelSpec

FAILED = 3
# Rows of a batch of an ONNX model whose tensors all begin with a dimension of any size; Triton has this default, too.
MAX_BATCH = 4
ONNX_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(bfloat16)": "TYPE_BF16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


def of_python(path: Path, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """By the model's own auto_complete_config. Raises ModelError, or whatever that raises."""
    from gemlet.serve.execution.triton import backend_utils, python_model  # noqa: PLC0415  for Python models only

    spec = ModelSpec(name=folder.name, directory=str(folder), platform="triton_python", version=int(path.parent.name))
    with beside(path.parent):
        made = python_model.model_class(spec, path).auto_complete_config(backend_utils.ModelConfig(config))
    if not isinstance(made, backend_utils.ModelConfig):
        raise ModelError("auto_complete_config returned no configuration")
    completed = made.as_dict()
    completed.setdefault("backend", "python")
    return completed


def of_onnx(path: Path, _folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """By the file's inputs and outputs. Raises ModelError, or what ONNX Runtime raises."""
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise ModelError("ONNX Runtime is not installed (pip install 'gemlet[onnx]')") from None
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tensors = {"input": session.get_inputs(), "output": session.get_outputs()}
    every = [each for several in tensors.values() for each in several]
    if "max_batch_size" not in config and all(each.shape and not isinstance(each.shape[0], int) for each in every):
        config["max_batch_size"] = MAX_BATCH
    batched = bool(config.get("max_batch_size"))
    for where, several in tensors.items():
        config.setdefault(where, [_tensor(each, batched) for each in several])
    if not config.get("platform"):
        config.setdefault("backend", "onnxruntime")
    return config


def _tensor(each: Any, batched: bool) -> dict[str, Any]:
    if each.type not in ONNX_TYPES:
        raise ModelError(f"{each.name!r} is a {each.type}, which is not served")
    sizes = [size if isinstance(size, int) else -1 for size in each.shape]
    if batched and (not sizes or sizes[0] != -1):
        raise ModelError(f"{each.name!r} has shape {sizes}: a batch needs a first dimension of any size")
    return {"name": each.name, "data_type": ONNX_TYPES[each.type], "dims": sizes[batched:]}


def main() -> int:
    kind, path, folder = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print is words, not data
    sys.dont_write_bytecode = True
    complete = {"python": of_python, "onnx": of_onnx}[kind]
    try:
        told = json.dumps(complete(Path(path), Path(folder), json.load(sys.stdin)))
    except BaseException as error:  # noqa: BLE001  a model's file raises anything, SystemExit too
        message = error.message if isinstance(error, GemletError) else f"{type(error).__name__}: {error}"
        answer.write(message.partition("\n")[0])
        answer.flush()
        return FAILED
    answer.write(told)
    answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
