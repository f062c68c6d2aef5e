"""An inference request over HTTP: JSON, with tensors in it or, by the binary extension, behind it.

body = JSON of Inference-Header-Content-Length bytes, then the tensors with ``binary_data_size`` in order

decode() makes bytes of what is text, and answer_form.finish() text of bytes: both take time by its size, and
what is large goes through them in another process (unpacking.py). The rest takes time by the number of tensors.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.decoding import convert, from_json
from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.server.frontend import answer_form, json_tensors, limits, request_checks
from gemlet.serve.server.frontend.answer_form import Finished, Form, Parameters, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.regions import UserRegions

MAX_TENSOR_BYTES = 64 * 1024**2  # of tensors that come as text, where nothing else is asked for


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: str
    parameters: Parameters | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: Parameters | None = None
    outputs: list[_Output] | None = None


class Decoded(msgspec.Struct, frozen=True):
    """An input whose text became bytes. ``data`` None: they are behind the JSON, or in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters
    data: bytes | None


class Asked(msgspec.Struct, frozen=True):
    """A request without text for data."""

    inputs: list[Decoded]
    id: str
    parameters: Parameters
    outputs: list[tuple[str, Parameters]]


PLACE = "here"
_encode = msgspec.json.Encoder().encode


def parse(body: tensors.Buffer, header: int | None, regions: UserRegions) -> tuple[list[Tensor], Form, Parameters]:
    """Inputs, the form of the answer and the parameters of a request. ``header``: bytes of JSON, None: all.

    Inputs in shared memory are yet to be read (regions.py). Raises Refusal.
    """
    end = json_end(body, header)
    view = memoryview(body)
    # Where its data is behind it, clients send the same JSON again.
    alike = end <= request_checks.STRUCTURE_BYTES and end < len(body)
    asked, default, outputs = _structure(bytes(view[:end])) if alike else _with_outputs(decode(view[:end]))
    return _inputs(asked, view[end:], regions), Form("", "", asked.id, default, outputs), asked.parameters


def raw(body: tensors.Buffer, spec: ModelSpec) -> tuple[list[Tensor], Form, Parameters]:
    """As parse(), of a body that is the only input of a model, one row of it; outputs are binary. Raises Refusal."""
    if len(spec.inputs) != 1:
        raise Refusal("invalid", f"{spec.name} has {len(spec.inputs)} inputs: expected 1 where a body has no JSON")
    (wanted_input,) = spec.inputs
    shape = list(wanted_input.shape)
    data = body
    if wanted_input.datatype == "BYTES":
        if prod(shape) not in {1, -1}:
            raise Refusal("invalid", f"input {wanted_input.name!r} has shape {shape}: a body without JSON is one")
        shape, data = [1] * len(shape), tensors.pack([bytes(body)])
    elif shape.count(-1) == 1:
        others = tensors.nbytes(wanted_input.datatype, [size for size in shape if size != -1])
        shape[shape.index(-1)] = len(body) // others if others else 0
    elif -1 in shape:
        message = f"input {wanted_input.name!r} has shape {shape}: a body without JSON tells one size only"
        raise Refusal("invalid", message)
    whole = (1, *shape) if spec.max_batch else tuple(shape)
    given = Tensor(wanted_input.name, wanted_input.datatype, whole, memoryview(data))
    return [given], Form("", "", "", Wanted(binary=True), None), {}


def json_end(body: tensors.Buffer, header: int | None) -> int:
    """Where the JSON of a body ends. Raises Refusal."""
    if header is not None and not 0 <= header <= len(body):
        raise Refusal("invalid", f"Inference-Header-Content-Length is {header}; the body has {len(body)} bytes")
    return len(body) if header is None else header


def decode(text: tensors.Buffer, limit: int = MAX_TENSOR_BYTES) -> Asked:
    """The JSON of a request, its lists of data as bytes, at most ``limit`` of them. Raises Refusal."""
    try:
        request = _decoded(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"not an inference request: {error}") from None
    if len(text) > request_checks.MAX_STRUCTURE:
        _check_structure(request)
    inputs = []
    left = limit
    for each in request.inputs:
        request_checks.check_shape(each.name, each.shape)
        parameters = each.parameters or {}
        listed = "shared_memory_region" not in parameters and "binary_data_size" not in parameters
        if listed:
            left -= request_checks.check_size(each.name, each.datatype, each.shape, left)
        data = bytes(json_tensors.listed_bytes(each.name, each.datatype, each.shape, each.data)) if listed else None
        inputs.append(Decoded(each.name, each.datatype, tuple(each.shape), parameters, data))
    outputs = [(each.name, each.parameters or {}) for each in request.outputs or ()]
    return Asked(inputs, request.id, request.parameters or {}, outputs)


def _check_structure(request: _Request) -> None:
    """Raises Refusal."""
    bare = [msgspec.structs.replace(each, data=msgspec.Raw(b"0")) for each in request.inputs]
    try:
        request_checks.check_structure(len(_encode(msgspec.structs.replace(request, inputs=bare))))
    except (OverflowError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"not an inference request: {error}") from None


def given(request: Asked, tail: memoryview) -> list[Tensor]:
    """The inputs of what was decoded that are not in shared memory. Raises Refusal."""
    at, found = 0, []
    for each in request.inputs:
        if each.data is not None or "shared_memory_region" not in each.parameters:
            data, at = _data(each, tail, at)
            found.append(Tensor(each.name, each.datatype, each.shape, data))
    return found


def assemble(request: Asked, tail: memoryview, regions: UserRegions) -> tuple[list[Tensor], Form, Parameters]:
    """As parse(), of what was decoded and the bytes behind the JSON, where BYTES were checked. Raises Refusal."""
    _, default, outputs = _with_outputs(request)
    inputs = _inputs(request, tail, regions)
    request_checks.are_checked(inputs)
    return inputs, Form("", "", request.id, default, outputs), request.parameters


@lru_cache(request_checks.STRUCTURES)
def _structure(text: bytes) -> tuple[Asked, Wanted, dict[str, Wanted] | None]:
    """Raises Refusal."""
    return _with_outputs(decode(text))


def _with_outputs(request: Asked) -> tuple[Asked, Wanted, dict[str, Wanted] | None]:
    """A request, how its outputs are sent, and those it asks for. Raises Refusal."""
    default = Wanted(binary=request.parameters.get("binary_data_output") is True)
    outputs = {name: answer_form.wanted(parameters, default) for name, parameters in request.outputs}
    return request, default, outputs or None


def _inputs(request: Asked, tail: memoryview, regions: UserRegions) -> list[Tensor]:
    """Raises Refusal."""
    at = 0
    given: list[Tensor] = []
    regions.check_sizes(each.parameters for each in request.inputs)
    for each in request.inputs:
        if each.data is None and "shared_memory_region" in each.parameters:
            given.append(regions.tensor(each.name, each.datatype, each.shape, each.parameters))
        else:
            data, at = _data(each, tail, at)
            given.append(Tensor(each.name, each.datatype, each.shape, data))
    if at != len(tail):
        raise Refusal("invalid", f"{len(tail) - at} bytes after the last tensor belong to no input")
    return given


def render(
    form: Form,
    spec: ModelSpec,
    outputs: list[Tensor],
    finished: Mapping[str, Finished],
) -> tuple[list[tensors.Buffer], list[tensors.Buffer]]:
    """JSON of the answer, and the binary tensors behind it, both in parts which may be views. Raises Refusal.

    finished: of outputs, by name, what answer_form.finish() gave.
    """
    texts: list[tensors.Buffer] = []  # that are too large to be copied into the JSON
    described: list[dict[str, Any]] = []
    binary: list[tensors.Buffer] = []
    for output in outputs:
        how = form.wanted(output.name)
        ready = finished.get(output.name)
        if ready is None and (how.classes or not (how.region or how.binary)):
            ready = answer_form.finish(output, how, batched=bool(spec.max_batch))
        tensor = output if ready is None else ready.tensor
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if how.region:  # it is there; without parameters: Triton's clients take those for binary data
            pass
        elif how.binary:
            one["parameters"] = {"binary_data_size": len(tensor.data)}
            binary.append(tensor.data)
        elif ready is not None:
            large = len(ready.text) > limits.COPY_BYTES
            texts += [ready.text] if large else []
            one["data"] = PLACE if large else msgspec.Raw(ready.text)
        described.append(one)
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": str(spec.version), "outputs": described}
    if form.id:
        answer["id"] = form.id
    json = _encode(answer)
    return _filled(json, texts) if texts else [json], binary


def _filled(json: bytes, texts: list[tensors.Buffer]) -> list[tensors.Buffer]:
    """The parts of JSON with these texts in place of what encodes PLACE: members of objects, which no name looks like,
    for the quotes of a string in JSON have a backslash before them."""
    first, *rest = json.split(b'"data":' + _encode(PLACE))
    parts: list[tensors.Buffer] = [first]
    for text, part in zip(texts, rest, strict=True):
        parts += (b'"data":', text, part)
    return parts


def _data(each: Decoded, view: memoryview, at: int) -> tuple[tensors.Buffer, int]:
    """The bytes of an input, and where the next binary tensor starts."""
    if each.data is not None:
        return each.data, at
    size = each.parameters.get("binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(view) - at:
        raise Refusal("invalid", f"input {each.name!r}: {size!r} bytes of binary data; {len(view) - at} are there")
    return view[at : at + size], at + size


def _decoded(text: tensors.Buffer) -> _Request:
    try:
        return from_json(text, _Request)
    except msgspec.DecodeError:
        whole = bytes(text)
        if not json_tensors.has_words(whole):
            raise
    return convert(_raw_data(json_tensors.loads(whole)), _Request)


def _raw_data(document: Any) -> Any:
    """The document with the data of its inputs as text again, for what decodes inputs one by one."""
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for each in inputs if isinstance(inputs, list) else ():
        if isinstance(each, dict) and "data" in each:
            each["data"] = msgspec.Raw(json.dumps(each["data"]).encode())
    return document
