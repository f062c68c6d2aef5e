"""An inference request and its answer as messages of the gRPC protocol."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from gemlet.inference_protocol import inference_pb2, tensors
from gemlet.serve.dispatch.call import Refusal, Tensor, check_bytes
from gemlet.serve.server.frontend.answer_form import Form, Wanted, finish, wanted
from gemlet.serve.server.frontend.request_checks import (
    MAX_DIMENSIONS,
    check_count,
    check_shape,
    check_size,
    check_structure,
    check_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.answer_form import Finished
    from gemlet.serve.server.frontend.regions import UserRegions
# Of the wire format: fields 1 to 7 of a ModelInferRequest are all of this type.
LENGTH_DELIMITED = 2
RAW_INPUT_CONTENTS = 7
RAW_OUTPUT_CONTENTS = 6  # of a ModelInferResponse
INFER_RESPONSE = 2  # of a ModelStreamInferResponse
# There is one answer for each request.
FINAL = inference_pb2.ModelInferResponse(
    parameters={"triton_final_response": inference_pb2.InferParameter(bool_param=True)}
).SerializeToString()
COMMON = 1024  # parts of answers that are remembered
MAX_SHIFT = 63
FIELD_COST = 64  # bytes of text, about, that take as long as one more field does

# Which field of InferTensorContents holds a datatype; FP16 and BF16 go as raw contents only.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class Divided(NamedTuple):
    """A ModelInferRequest: all but its raw contents, which are not copied, and these."""

    structure: bytes
    raw: list[tensors.Buffer]


def divided(message: tensors.Buffer, limit: int) -> Divided | None:
    """None: reading it would take longer than reading ``limit`` bytes of text, or it is not such a message."""
    view, at, end, cost = memoryview(message), 0, len(message), 0
    structure, raw = [], list[tensors.Buffer]()
    try:
        while at < end and cost <= limit:
            begun = at
            tag, at = varint(message, at)
            if tag & 7 != LENGTH_DELIMITED:
                return None
            size, at = varint(message, at)
            data, at = view[at : at + size], at + size
            cost += FIELD_COST
            if tag >> 3 == RAW_INPUT_CONTENTS:
                raw.append(data)
            else:
                structure.append(view[begun:at])
                cost += size
    except IndexError:
        return None
    return Divided(b"".join(structure), raw) if at == end and cost <= limit else None


def plain_message(message: bytes, limit: int) -> Divided:
    """The request with all its contents raw, ``limit`` bytes of them, BYTES checked. Takes time and memory by its size.

    Raises Refusal.
    """
    request = read(message)
    if len(request.raw_input_contents) > len(request.inputs):
        raise _too_many_raw()
    raw, plain_contents = iter(request.raw_input_contents), list[tensors.Buffer]()
    left = limit
    for each in request.inputs:
        if each.HasField("contents"):
            left -= check_size(each.name, each.datatype, each.shape[:MAX_DIMENSIONS], left)
        if "shared_memory_region" not in each.parameters:
            plain_contents.append(bytes(_contents(each, raw)))
            each.ClearField("contents")
            if each.datatype == "BYTES":
                check_shape(each.name, each.shape)
                check_texts(each.name, each.datatype, each.shape)
                check_bytes(Tensor(each.name, each.datatype, tuple(each.shape), plain_contents[-1]))
    plain_contents += raw
    del request.raw_input_contents[:]
    check_structure(request.ByteSize())
    return Divided(request.SerializeToString(), plain_contents)


def read(structure: bytes) -> inference_pb2.ModelInferRequest:
    """Raises Refusal."""
    try:
        return inference_pb2.ModelInferRequest.FromString(structure)
    except DecodeError as error:
        raise Refusal("invalid", f"not a ModelInferRequest: {error}") from None


def parse(
    request: inference_pb2.ModelInferRequest, contents: Iterable[tensors.Buffer], regions: UserRegions
) -> tuple[list[Tensor], Form, dict[str, Any]]:
    """Inputs, the form of the answer, and the parameters. ``contents``: raw. Inputs in shared memory are yet to be read
    (regions.py).

    Raises Refusal.
    """
    raw = iter(contents)
    regions.check_sizes(plain(each.parameters) for each in request.inputs if each.parameters)
    given = [_tensor(each, raw, regions) for each in request.inputs]
    if next(raw, None) is not None:
        raise _too_many_raw()
    default, outputs, parameters = form_of(request)
    return given, Form(request.model_name, request.model_version, request.id, default, outputs), parameters


def _too_many_raw() -> Refusal:
    return Refusal("invalid", "raw_input_contents has more entries than there are inputs for them")


def form_of(request: inference_pb2.ModelInferRequest) -> tuple[Wanted, dict[str, Wanted] | None, dict[str, Any]]:
    """How outputs are sent, those asked for, and the parameters. Raises Refusal."""
    default = Wanted(binary=True)
    outputs = {each.name: wanted(plain(each.parameters), default) for each in request.outputs} or None
    return default, outputs, plain(request.parameters)


def render(
    form: Form,
    spec: ModelSpec,
    outputs: list[Tensor],
    finished: Mapping[str, Finished],
) -> list[tensors.Buffer]:
    """The parts of a ModelInferResponse; ``finished`` as for infer_json.render(). Raises Refusal.

    Messages that follow each other are one with the fields of all, so what answers have in common is written once.
    """
    described = [_named(spec.name, spec.version)]
    raw: list[tensors.Buffer] = []
    if form.id:
        described.append(inference_pb2.ModelInferResponse(id=form.id).SerializeToString())
    for output in outputs:
        how = form.wanted(output.name)
        ready = finished.get(output.name)
        if ready is None and how.classes:
            ready = finish(output, how, batched=bool(spec.max_batch))
        tensor = output if ready is None else ready.tensor
        described.append(_described(tensor.name, tensor.datatype, tuple(tensor.shape)))
        data: tensors.Buffer = tensor.data
        if how.region:  # it is there
            data = b""
        raw += (_before(RAW_OUTPUT_CONTENTS, len(data)), data)
    return [*described, *raw]


def in_stream(answer: list[tensors.Buffer]) -> list[tensors.Buffer]:
    """The parts of a ModelStreamInferResponse with the last answer to a request, which are those of that answer."""
    nbytes = sum(map(len, answer)) + len(FINAL)
    return [_before(INFER_RESPONSE, nbytes), *answer, FINAL]


@lru_cache(COMMON)
def _named(name: str, version: int) -> bytes:
    return inference_pb2.ModelInferResponse(model_name=name, model_version=str(version)).SerializeToString()


@lru_cache(COMMON)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    answer = inference_pb2.ModelInferResponse()
    answer.outputs.add(name=name, datatype=datatype, shape=shape)
    return answer.SerializeToString()


@lru_cache(COMMON)
def _before(field: int, nbytes: int) -> bytes:
    """Tag and length of a field."""
    found = bytearray([field << 3 | LENGTH_DELIMITED])
    while nbytes > 0x7F:
        found.append(nbytes & 0x7F | 0x80)
        nbytes >>= 7
    found.append(nbytes)
    return bytes(found)


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain values."""
    return {
        name: getattr(value, chosen)
        for name, value in parameters.items()
        if (chosen := value.WhichOneof("parameter_choice")) is not None
    }


def varint(data: tensors.Buffer, at: int) -> tuple[int, int]:
    """A number of the wire format, and where it ends. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > MAX_SHIFT:
            raise IndexError


def _tensor(each: Any, raw: Iterator[tensors.Buffer], regions: UserRegions) -> Tensor:
    check_shape(each.name, each.shape)
    if "shared_memory_region" in each.parameters:
        return regions.tensor(each.name, each.datatype, each.shape, plain(each.parameters))
    return Tensor(each.name, each.datatype, tuple(each.shape), _contents(each, raw))


def _contents(each: Any, raw: Iterator[tensors.Buffer]) -> tensors.Buffer:
    if not each.HasField("contents"):
        data = next(raw, None)
        if data is None:
            raise Refusal("invalid", f"input {each.name!r} has no data")
        return data
    field = CONTENTS.get(each.datatype)
    if field is None:
        raise Refusal("invalid", f"input {each.name!r}: {each.datatype!r} goes as raw contents only, or is none")
    elements, shape = getattr(each.contents, field), list(each.shape[:MAX_DIMENSIONS])
    check_count(each.name, len(elements), shape)
    check_texts(each.name, each.datatype, shape)
    if each.datatype == "BYTES":
        return tensors.pack(elements)
    try:
        return np.array(list(elements), dtype=tensors.ELEMENTS[each.datatype][1]).tobytes()  # a list: numpy checks it
    except (ValueError, OverflowError) as error:
        raise Refusal("invalid", f"input {each.name!r}: {error}") from None
