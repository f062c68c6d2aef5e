"""config.pbtxt of a model: the part of Triton's format that applies here.

``parameters`` named slo_ms, sm, class and priority say what Triton's format has no field for. docs/serving/models.md
says what is read and what is ignored. The log names all other fields of a file, once; those without which the model
would be another one are refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf import json_format, text_format

from gemlet.decoding import convert
from gemlet.errors import ConfigError
from gemlet.inference_protocol import model_config_pb2
from gemlet.serve.models.specification import TensorSpec, WarmUp
from gemlet.serve.server.repository import text_fields
from gemlet.serve.server.repository.config import Config, FieldError, TensorConfig, field_of, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gemlet.serve.models.specification import ModelSpec, Platform

PLATFORMS: dict[str, Platform] = {
    "pytorch_libtorch": "torchscript",
    "pytorch": "torchscript",
    "onnxruntime_onnx": "onnx",
    "onnxruntime": "onnx",
    "tensorrt_plan": "tensorrt",
    "tensorrt": "tensorrt",
    "python": "python",
}
REFUSED = {  # by path: why
    "ensemble_scheduling": "ensembles are not served: a client calls one model after the other",
    "sequence_batching": "sequences are not served: requests of a model are independent",
    "model_transaction_policy.decoupled": "decoupled models are not served: a request has one reply",
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
}
MAX_TOLD = 1000  # characters of an error
OURS = frozenset({"slo_ms", "slo", "sm", "class", "priority"})


def parse(text: str, path: Path) -> tuple[Config, tuple[str, ...]]:
    """What the file says, and notes on what it says in vain. Raises ConfigError with the line."""
    message, notes = read(text, path)
    return said(message, path), notes


def read(text: str, path: Path) -> tuple[model_config_pb2.ModelConfig, tuple[str, ...]]:
    """The file as a message, and notes on what it says in vain. Raises ConfigError with the line."""
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(_with_colons(text), message, allow_unknown_field=True)
    except text_format.ParseError as error:
        told = re.sub(r"^\d+:\d+ : ", "", str(error)).strip("'")
        if len(told) > MAX_TOLD:  # it quotes the line
            told = f"{told[: MAX_TOLD // 2]} ... {told[-MAX_TOLD // 2 :]}"
        raise ConfigError(
            told,
            path=str(path),
            line=error.GetLine(),
            column=error.GetColumn(),
            hint="write it in protobuf's text format",
        ) from None
    except (UnicodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"not protobuf's text format: {error}", path=str(path)) from None
    fields = list(text_fields.fields(text, message.DESCRIPTOR))
    _refuse(fields, path)
    return message, tuple(_notes(fields, message))


def said(message: model_config_pb2.ModelConfig, path: Path) -> Config:
    """What it means here. Raises ConfigError."""
    try:
        return _config(message)
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
    if message.model_transaction_policy.decoupled:
        raise FieldError(("model_transaction_policy", "decoupled"), REFUSED["model_transaction_policy.decoupled"])
    config = convert(ours, Config)
    return msgspec.structs.replace(
        config,
        name=message.name or None,
        platform=_platform(message),
        max_batch=message.max_batch_size,
        inputs=_tensors("input", message.input) or None,
        outputs=_tensors("output", message.output) or None,
        versions=_versions(message.version_policy),
        parameters=parameters or None,
        file=_file(message.default_model_filename),
        warm_up=tuple(map(_warm_up, message.model_warmup)) or None,
    )


def _file(name: str) -> str | None:
    if "/" in name:
        raise FieldError(("default_model_filename",), f"{name!r} is not the name of a file", "leave it out")
    return name or None


def _warm_up(sample: Any) -> WarmUp:
    inputs = []
    for name, each in sorted(sample.inputs.items()):
        fill = "zero" if each.zero_data else "random" if each.random_data else each.input_data_file
        if not fill or fill.startswith("/") or ".." in fill:
            hint = (
                "write zero_data: true, random_data: true, or as input_data_file a file in the model's folder `warmup`"
            )
            raise FieldError(("model_warmup", "inputs", name), "it does not say what fills it", hint)
        inputs.append((TensorSpec(name, _datatype(("model_warmup", "inputs", name), each), tuple(each.dims)), fill))
    return WarmUp(sample.name, max(1, sample.batch_size), max(1, sample.count), tuple(inputs))


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
        datatype = _datatype((what, number, "data_type"), each)
        optional = getattr(each, "optional", False)  # outputs have no such field
        tensors.append(TensorConfig(name=each.name, datatype=datatype, shape=list(each.dims), optional=optional))
    return tensors


def _datatype(field: tuple[str | int, ...], tensor: Any) -> str:
    name = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    if name == "INVALID":
        raise FieldError(field, "it does not say", "such as data_type: TYPE_FP32")
    return "BYTES" if name == "STRING" else name


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


def table(message: model_config_pb2.ModelConfig, *, whole: bool) -> dict[str, Any]:
    """The message as JSON has it; ``whole``: with what it does not say, too."""
    told = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=whole
    )
    return _numbers(told, message.DESCRIPTOR)


def message_from(told: dict[str, Any], path: Path) -> model_config_pb2.ModelConfig:
    """The reverse. Raises ConfigError."""
    try:
        return json_format.ParseDict(told, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ConfigError(f"the completed configuration is not valid: {error}", path=str(path)) from None


def for_model(message: model_config_pb2.ModelConfig, spec: ModelSpec) -> str:
    """JSON of the configuration as a Python model of Triton's expects it."""
    known = message_of(spec)
    whole = model_config_pb2.ModelConfig()
    whole.CopyFrom(message)
    whole.name, whole.backend = spec.name, whole.backend or "python"
    whole.default_model_filename = whole.default_model_filename or "model.py"
    for field in ("input", "output"):
        if not getattr(whole, field):
            getattr(whole, field).extend(getattr(known, field))
    whole.max_batch_size = spec.max_batch
    if whole.version_policy.WhichOneof("policy_choice") is None:
        whole.version_policy.latest.num_versions = 1
    if not whole.instance_group:
        whole.instance_group.add(name=f"{spec.name}_0", count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_AUTO)
    return json.dumps(table(whole, whole=True))


def _numbers(told: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """The same with 64-bit integers as numbers, as Triton has them: protobuf makes text of those."""
    for name, value in told.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            continue
        several = value if isinstance(value, list) else [value]
        if field.cpp_type in {field.CPPTYPE_INT64, field.CPPTYPE_UINT64}:
            whole = [int(each) for each in several]
            told[name] = whole if isinstance(value, list) else whole[0]
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in several:
                _numbers(each, field.message_type)
    return told


def message_of(spec: ModelSpec, versions: Sequence[int] = ()) -> model_config_pb2.ModelConfig:
    """The configuration that clients are shown. ``versions``: that are served; none: that of ``spec``."""
    message = model_config_pb2.ModelConfig(name=spec.name, platform=spec.shown_platform, max_batch_size=spec.max_batch)
    message.version_policy.specific.versions.extend(versions or [spec.version])
    for tensor in spec.inputs:
        message.input.add(name=tensor.name, data_type=_type(tensor), dims=tensor.shape, optional=tensor.optional)
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
