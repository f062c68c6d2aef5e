"""ONNX Runtime and TensorRT on a GPU: models as functions of arrays on the host, in the streams of gpu-lets.

What such a library computes goes to whatever stream is torch's current one, which keeps it on the SMs of its gpu-let.
Each stream has a session or execution context of its own, made at its first batch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gemlet.serve.execution import onnx_model
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gemlet.serve.execution.onnx_model import Runner
    from gemlet.serve.models.specification import ModelSpec

    Arrays = Mapping[str, np.ndarray]

CUDA = "CUDAExecutionProvider"


def onnx(spec: ModelSpec, file: Path) -> Runner:
    """By the CUDA execution provider. Each gpu-let has its own weights.

    Raises ModelError, or what the library raises."""
    runtime = _library(spec, "onnxruntime", "pip install onnxruntime-gpu")
    if CUDA not in runtime.get_available_providers():
        hint = "pip install onnxruntime-gpu, in place of onnxruntime"
        raise ModelError(f"{spec.name}: this ONNX Runtime runs on the CPU only", hint=hint)

    def session(stream: int) -> Runner:
        options = {"device_id": torch.cuda.current_device(), "user_compute_stream": str(stream)}
        made = runtime.InferenceSession(str(file), providers=[(CUDA, options), "CPUExecutionProvider"])
        return onnx_model.runner(spec, made)

    sessions: dict[int, Runner] = {}

    def run(inputs: Arrays) -> Arrays:
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in sessions:
            sessions[stream] = session(stream)
        return sessions[stream](inputs)

    session(torch.cuda.current_stream().cuda_stream)  # whether it can be: not at the first batch
    return run


def tensorrt(spec: ModelSpec, file: Path, datatypes: Mapping[str, torch.dtype]) -> Runner:
    """An engine that was built for this kind of GPU and this version. Raises ModelError, or what the library raises."""
    library = _library(spec, "tensorrt", "pip install tensorrt, of the version that built the engine")
    engine = library.Runtime(library.Logger(library.Logger.WARNING)).deserialize_cuda_engine(file.read_bytes())
    if engine is None:
        hint = "build the engine on this kind of GPU, with the TensorRT that is installed here"
        raise ModelError(f"{spec.name}: TensorRT {library.__version__} cannot read {file}", hint=hint)
    contexts: dict[int, Any] = {}

    def run(inputs: Arrays) -> Arrays:
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in contexts:
            contexts[stream] = engine.create_execution_context()
        context = contexts[stream]
        kept = []  # what the device reads must be there until it is done
        for tensor in spec.inputs:
            given = torch.from_numpy(np.array(inputs[tensor.name])).to("cuda")
            context.set_input_shape(tensor.name, tuple(given.shape))
            context.set_tensor_address(tensor.name, given.data_ptr())
            kept.append(given)
        outputs = {}
        for tensor in spec.outputs:
            shape = tuple(context.get_tensor_shape(tensor.name))
            outputs[tensor.name] = torch.empty(shape, dtype=datatypes[tensor.datatype], device="cuda")
            context.set_tensor_address(tensor.name, outputs[tensor.name].data_ptr())
        if not context.execute_async_v3(stream):
            raise ModelError(f"{spec.name}: TensorRT refused the batch")
        return {name: tensor.cpu().numpy() for name, tensor in outputs.items()}

    return run


def _library(spec: ModelSpec, name: str, hint: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModelError(f"{spec.name} needs {name}, which is not installed", hint=hint) from None
