"""config.pbtxt of a model: the part of Triton's format that applies here.

``parameters`` named slo_ms, sm, class and priority say what Triton's format has no field for. What is read and what is
ignored is in docs/serving.md; the log names all other fields of a file, once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf import text_format

from gemlet.errors import ConfigError
from gemlet.inference_protocol import model_config_pb2
from gemlet.serve.server.repository.config import Config, FieldError, TensorConfig, field_of, problem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gemlet.serve.models.specification import ModelSpec, Platform, TensorSpec

PLATFORMS: dict[str, Platform] = {
    "pytorch_libtorch": "torchscript",
    "pytorch": "torchscript",
    "onnxruntime_onnx": "onnx",
    "onnxruntime": "onnx",
    "python": "python",
}
OURS = frozenset({"slo_ms", "slo", "sm", "class", "priority"})


def parse(text: str, path: Path) -> tuple[Config, tuple[str, ...]]:
    """What the file says, and notes on what it says in vain. Raises ConfigError with the line."""
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        told = re.sub(r"^\d+:\d+ : ", "", str(error)).strip("'")
        raise ConfigError(
            told,
            path=str(path),
            line=error.GetLine(),
            column=error.GetColumn(),
            hint="write it in protobuf's text format",
        ) from None
    except (UnicodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"not protobuf's text format: {error}", path=str(path)) from None
    try:
        return _config(message), tuple(_notes(text, message))
    except msgspec.ValidationError as error:
        raise problem(field_of(error), path) from None
    except FieldError as error:
        raise problem(error, path) from None


def _config(message: model_config_pb2.ModelConfig) -> Config:
    parameters = {key: value.string_value for key, value in message.parameters.items()}
    ours: dict[str, Any] = {key: parameters.pop(key) for key in OURS & parameters.keys()}
    for key in {"slo_ms", "priority"} & ours.keys():
        try:
            ours[key] = float(ours[key]) if key == "slo_ms" else int(ours[key])
        except ValueError:
            raise FieldError(("parameters", key), f"{ours[key]!r} is not a number") from None
    if message.dynamic_batching.default_priority_level and "priority" not in ours:
        ours["priority"] = message.dynamic_batching.default_priority_level
    config: Config = msgspec.convert(ours, Config)
    specific = message.version_policy.specific.versions
    return msgspec.structs.replace(
        config,
        name=message.name or None,
        platform=_platform(message),
        max_batch=message.max_batch_size,
        inputs=_tensors("input", message.input) or None,
        outputs=_tensors("output", message.output) or None,
        version=max(specific) if specific else None,
        parameters=parameters or None,
    )


def _platform(message: model_config_pb2.ModelConfig) -> str | None:
    name = message.platform or message.backend
    if not name:
        return None
    if name not in PLATFORMS:
        known = ", ".join(PLATFORMS)
        field = "platform" if message.platform else "backend"
        raise FieldError((field,), f"{name!r} cannot be served", f"of Triton's: {known}; or write a config.yaml")
    return PLATFORMS[name]


def _tensors(what: str, messages: Iterable[Any]) -> list[TensorConfig]:
    tensors = []
    for number, each in enumerate(messages):
        datatype = model_config_pb2.DataType.Name(each.data_type).removeprefix("TYPE_")
        if datatype == "INVALID":
            raise FieldError((what, number, "data_type"), "it does not say", "such as data_type: TYPE_FP32")
        tensors.append(
            TensorConfig(name=each.name, datatype="BYTES" if datatype == "STRING" else datatype, shape=list(each.dims))
        )
    return tensors


def _notes(text: str, message: model_config_pb2.ModelConfig) -> Iterable[str]:
    if message.instance_group:
        yield "instance_group is ignored: the plan decides where a model runs"
    if message.dynamic_batching.max_queue_delay_microseconds:
        yield "max_queue_delay_microseconds is ignored: a free gpu-let takes what waits at once"
    known = {field.name for field in message.DESCRIPTOR.fields}
    flat = _without_nesting(text)
    unknown = sorted({name for name in re.findall(r"([a-z_]\w*)\s*[:{\[]", flat) if name not in known})
    if unknown:
        yield f"ignored: {', '.join(unknown)}"


def _without_nesting(text: str) -> str:
    """The text's outermost level: comments, strings and whatever is in brackets left out."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'|#[^\n]*", "", text)
    kept, depth = [], 0
    for character in text:
        if character in "}]":
            depth -= 1
        if depth == 0:
            kept.append(character)
        if character in "{[":
            depth += 1
    return "".join(kept)


def message_of(spec: ModelSpec) -> model_config_pb2.ModelConfig:
    """The configuration that clients are shown."""
    message = model_config_pb2.ModelConfig(name=spec.name, platform=spec.platform, max_batch_size=spec.max_batch)
    message.version_policy.specific.versions.append(spec.version)
    for tensor in spec.inputs:
        message.input.add(name=tensor.name, data_type=_type(tensor), dims=tensor.shape)
    for tensor in spec.outputs:
        message.output.add(name=tensor.name, data_type=_type(tensor), dims=tensor.shape)
    shown = {
        "slo_ms": f"{spec.slo_ms:g}",
        "class": spec.service_class,
        "priority": str(spec.priority),
        **spec.parameters,
    }
    if spec.sm is not None:
        shown["sm"] = f"{spec.sm:g}"
    for key, value in shown.items():
        message.parameters[key].string_value = value
    return message


def _type(tensor: TensorSpec) -> str:
    return "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"
