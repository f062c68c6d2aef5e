"""config.pbtxt of a model: the part of Triton's format that applies here.

``parameters`` named slo_ms, sm, class and priority say what Triton's format has no field for. What is read and what is
ignored is in docs/serving.md. The log names all other fields of a file, once; those without which the model would be
another one are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf import text_format

from gemlet.errors import ConfigError
from gemlet.inference_protocol import model_config_pb2
from gemlet.serve.server.repository import text_fields
from gemlet.serve.server.repository.config import Config, FieldError, TensorConfig, field_of, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gemlet.serve.models.specification import ModelSpec, Platform, TensorSpec

PLATFORMS: dict[str, Platform] = {
    "pytorch_libtorch": "torchscript",
    "pytorch": "torchscript",
    "onnxruntime_onnx": "onnx",
    "onnxruntime": "onnx",
    "python": "python",
}
REFUSED = {  # by path: why
    "ensemble_scheduling": "ensembles are not served: a client calls one model after the other",
    "sequence_batching": "sequences are not served: requests of a model are independent",
    "model_transaction_policy.decoupled": "decoupled models are not served: a request has one reply",
    "input.optional": "inputs that may be left out are not served: every request has all inputs",
    "input.reshape": "shapes are not changed on the way to a model",
    "output.reshape": "shapes are not changed on the way from a model",
    "input.allow_ragged_batch": "requests of different shapes are batched by shape, not one after the other",
    "input.is_shape_tensor": "shape tensors are not served",
    "output.is_shape_tensor": "shape tensors are not served",
}
IGNORED = {  # of the known fields: why, where another one takes its place
    "instance_group": "the plan decides where a model runs",
    "dynamic_batching.max_queue_delay_microseconds": "a free gpu-let takes what waits at once",
    "dynamic_batching.preferred_batch_size": "the plan decides how large batches are",
    "dynamic_batching.default_queue_policy": "a request may wait as long as its reply can come within `slo_ms`",
    "default_model_filename": "the file of a version has the name that its platform gives it",
}
OURS = frozenset({"slo_ms", "slo", "sm", "class", "priority"})


def parse(text: str, path: Path) -> tuple[Config, tuple[str, ...]]:
    """What the file says, and notes on what it says in vain. Raises ConfigError with the line."""
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(_with_colons(text), message, allow_unknown_field=True)
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
        fields = list(text_fields.fields(text, message.DESCRIPTOR))
        _refuse(fields, path)
        return _config(message), tuple(_notes(fields, message))
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
    return msgspec.structs.replace(
        config,
        name=message.name or None,
        platform=_platform(message),
        max_batch=message.max_batch_size,
        inputs=_tensors("input", message.input) or None,
        outputs=_tensors("output", message.output) or None,
        versions=_versions(message.version_policy),
        parameters=parameters or None,
    )


def _versions(policy: model_config_pb2.ModelVersionPolicy) -> str | list[int] | None:
    chosen = policy.WhichOneof("policy_choice")
    if chosen == "all":
        return "all"
    if chosen == "specific":
        return list(policy.specific.versions)
    return f"latest {policy.latest.num_versions or 1}" if chosen == "latest" else None


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


def _refuse(fields: Iterable[text_fields.Field], path: Path) -> None:
    for field in fields:
        if field.path in REFUSED and field.value not in {"false", "False", "f", "0"}:
            named = field.path.replace(".", " ")
            raise ConfigError(f"{named}: {REFUSED[field.path]}", path=str(path), line=field.line, hint="leave it out")


def _notes(fields: Iterable[text_fields.Field], message: model_config_pb2.ModelConfig) -> Iterable[str]:
    named = dict.fromkeys(field.path for field in fields)
    for path in named:
        if path in IGNORED:
            yield f"{path} is ignored: {IGNORED[path]}"
    unknown = {field.path for field in fields if not field.known}
    outermost = sorted(path for path in unknown if path.rpartition(".")[0] not in unknown)
    if outermost:
        yield f"ignored: {', '.join(outermost)}"


def _with_colons(text: str) -> str:
    """`name [` as `name: [`, which means the same and is read where the name is not known, too."""
    return re.sub(
        text_fields.QUOTED + r"|(?<=\w)(\s*)\[", lambda found: found[0] if found[1] is None else f":{found[1]}[", text
    )


def message_of(spec: ModelSpec, versions: Sequence[int] = ()) -> model_config_pb2.ModelConfig:
    """The configuration that clients are shown. ``versions``: that are served; none: that of ``spec``."""
    message = model_config_pb2.ModelConfig(name=spec.name, platform=spec.platform, max_batch_size=spec.max_batch)
    message.version_policy.specific.versions.extend(versions or [spec.version])
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
