"""An inference request over HTTP: JSON, with tensors in it or, by the binary extension, behind it.

body = JSON of Inference-Header-Content-Length bytes, then the tensors with ``binary_data_size`` in order
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Call, Refusal, Tensor

if TYPE_CHECKING:
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.regions import Regions

Parameters = dict[str, Any]
MAX_DIMENSIONS = 32
MAX_TIMEOUT_US = 1 << 62  # JSON's numbers have no end


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


_request = msgspec.json.Decoder(_Request)
_anything = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class Wanted(msgspec.Struct, frozen=True):
    """How to send an output: binary or not; in a region; as the ``classes`` highest values."""

    binary: bool = False
    region: str = ""
    offset: int = 0
    nbytes: int = 0
    classes: int = 0


class Form(msgspec.Struct):
    """What the answer to a request has to look like. ``outputs`` None: all, each as ``default``."""

    model: str
    version: str
    id: str
    default: Wanted
    outputs: dict[str, Wanted] | None


def parse(body: bytes | memoryview, header: int | None, regions: Regions) -> tuple[list[Tensor], Form, Parameters]:
    """Inputs, the form of the answer and the parameters of a request. ``header``: bytes of JSON, None: all.

    Raises Refusal.
    """
    if header is not None and not 0 <= header <= len(body):
        raise Refusal("invalid", f"Inference-Header-Content-Length is {header}; the body has {len(body)} bytes")
    view = memoryview(body)
    end = len(view) if header is None else header
    try:
        request = _request.decode(view[:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("invalid", f"not an inference request: {error}") from None
    given = []
    at = end
    regions.check_sizes(each.parameters or {} for each in request.inputs)
    for each in request.inputs:
        data, at = _data(each, view, at, regions)
        given.append(Tensor(each.name, each.datatype, tuple(each.shape), data))
    if at != len(view):
        raise Refusal("invalid", f"{len(view) - at} bytes after the last tensor belong to no input")
    parameters = request.parameters or {}
    default = Wanted(binary=parameters.get("binary_data_output") is True)
    outputs = None
    if request.outputs:
        outputs = {each.name: wanted(each.parameters or {}, default) for each in request.outputs}
    return given, Form("", "", request.id, default, outputs), parameters


def wanted(parameters: Parameters, default: Wanted) -> Wanted:
    """What the parameters of an output ask for. Raises Refusal."""
    if not parameters:
        return default
    binary = parameters.get("binary_data", default.binary)
    region = parameters.get("shared_memory_region", "")
    sizes = [parameters.get(key, 0) for key in ("shared_memory_offset", "shared_memory_byte_size", "classification")]
    if not isinstance(region, str) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise Refusal("invalid", "the parameters of an output are not valid")
    return Wanted(binary is True, region, *sizes)


def options(parameters: Parameters, call: Call) -> None:
    """Takes ``timeout`` (microseconds, as Triton's clients send it) and ``priority`` into the call. Raises Refusal."""
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    for name, value in (("timeout", timeout), ("priority", priority)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Refusal("invalid", f"parameter {name} is {value!r}, not a whole number from 0 on")
    if parameters.get("sequence_id") not in {None, 0, ""}:
        raise Refusal("unsupported", "sequences are not served: requests of a model are independent")
    call.timeout_ms, call.priority = min(timeout, MAX_TIMEOUT_US) / 1000, priority


def render(form: Form, spec: ModelSpec, outputs: list[Tensor], regions: Regions) -> tuple[bytes, list[tensors.Buffer]]:
    """JSON of the answer, and the binary tensors behind it, which may be views. Raises Refusal."""
    described: list[dict[str, Any]] = []
    binary: list[tensors.Buffer] = []
    for tensor in outputs:
        how = form.default if form.outputs is None else form.outputs[tensor.name]
        if how.classes:
            tensor = classify(tensor, how.classes, batched=bool(spec.max_batch))  # noqa: PLW2901
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if how.region:
            one["parameters"] = {"shared_memory_region": how.region, "shared_memory_byte_size": len(tensor.data)}
            if how.offset:
                one["parameters"]["shared_memory_offset"] = how.offset
            into_region(tensor, how, regions)
        elif how.binary:
            one["parameters"] = {"binary_data_size": len(tensor.data)}
            binary.append(tensor.data)
        else:
            one["data"] = _listed(tensor)
        described.append(one)
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": str(spec.version), "outputs": described}
    if form.id:
        answer["id"] = form.id
    return _encode(answer), binary


def chosen(form: Form, outputs: list[Tensor]) -> list[Tensor]:
    """The outputs that were asked for, in that order. Raises Refusal for an output that the model does not have."""
    if form.outputs is None:
        return outputs
    there = {tensor.name: tensor for tensor in outputs}
    return [there[name] for name in form.outputs]


def check_outputs(form: Form, spec: ModelSpec) -> None:
    """Raises Refusal, before the model runs, if a requested output does not exist."""
    known = {output.name for output in spec.outputs}
    for name in form.outputs or ():
        if name not in known:
            raise Refusal("invalid", f"{spec.name} has no output {name!r}; it has {', '.join(sorted(known))}")


def into_region(tensor: Tensor, how: Wanted, regions: Regions) -> None:
    """Writes an output into shared memory. Raises Refusal."""
    if len(tensor.data) > how.nbytes:
        raise Refusal("invalid", f"output {tensor.name!r} has {len(tensor.data)} bytes, its place {how.nbytes}")
    regions.write(how.region, how.offset, tensor.data)


def classify(tensor: Tensor, count: int, *, batched: bool) -> Tensor:
    """The highest ``count`` values of each row as BYTES "value:index", Triton's classification extension."""
    if tensor.datatype == "BYTES":
        raise Refusal("invalid", f"output {tensor.name!r} is BYTES, which have no highest value")
    array = tensors.to_array(tensor.data, tensor.datatype, tensor.shape)
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    best = np.argsort(rows, axis=1, kind="stable")[:, ::-1][:, :count]
    message = [
        f"{float(row[index]):f}:{index}".encode() for row, order in zip(rows, best, strict=True) for index in order
    ]
    shape = (rows.shape[0], best.shape[1]) if batched else (best.shape[1],)
    return Tensor(tensor.name, "BYTES", shape, tensors.pack(message))


def _data(each: _Input, view: memoryview, at: int, regions: Regions) -> tuple[tensors.Buffer, int]:
    """The bytes of an input, and where the next binary tensor starts."""
    if len(each.shape) > MAX_DIMENSIONS or any(size < 0 for size in each.shape):
        raise Refusal("invalid", f"input {each.name!r}: {each.shape} is not a valid shape")
    parameters = each.parameters or {}
    region = parameters.get("shared_memory_region")
    if region is not None:
        offset, nbytes = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size", 0)
        if not (isinstance(region, str) and isinstance(offset, int) and isinstance(nbytes, int)):
            raise Refusal("invalid", f"input {each.name!r}: its shared memory parameters are not valid")
        return regions.read(region, offset, nbytes), at
    size = parameters.get("binary_data_size")
    if size is None:
        return listed_bytes(each.name, each.datatype, each.shape, each.data), at
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(view) - at:
        raise Refusal("invalid", f"input {each.name!r}: {size!r} bytes of binary data; {len(view) - at} are there")
    return view[at : at + size], at + size


def listed_bytes(name: str, datatype: str, shape: list[int], raw: msgspec.Raw) -> tensors.Buffer:
    """The bytes of a tensor that is a list in JSON, flat or nested. Raises Refusal."""
    if not bytes(raw):
        raise Refusal("invalid", f"input {name!r} has no data")
    if datatype not in tensors.ELEMENTS and datatype != "BYTES":
        raise Refusal("invalid", f"input {name!r}: {datatype!r} is not a valid datatype")
    if datatype == "BF16":
        raise Refusal("invalid", f"input {name!r}: BF16 must be sent as binary data")
    try:
        flat = _flat(_anything.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("invalid", f"input {name!r}: {error}") from None
    if len(flat) != prod(shape):
        raise Refusal("invalid", f"input {name!r} has {len(flat)} elements; shape {shape} has {prod(shape)}")
    if datatype == "BYTES":
        if not all(isinstance(element, str) for element in flat):
            raise Refusal("invalid", f"input {name!r}: BYTES in JSON are strings")
        return tensors.pack(element.encode() for element in flat)
    kinds = bool if datatype == "BOOL" else (int, float) if datatype.startswith("FP") else int
    if not all(isinstance(element, kinds) and (datatype == "BOOL" or element is not True) for element in flat):
        raise Refusal("invalid", f"input {name!r}: its data are not all {datatype}")
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=tensors.ELEMENTS[datatype][1]).tobytes()
    except (ValueError, OverflowError, TypeError) as error:
        raise Refusal("invalid", f"input {name!r}: {error}") from None


def _flat(nested: Any) -> list[Any]:
    flat: list[Any] = []
    waiting = [iter(nested if isinstance(nested, list) else [nested])]
    while waiting:
        for element in waiting[-1]:
            if isinstance(element, list):
                waiting.append(iter(element))
                break
            flat.append(element)
        else:
            waiting.pop()
    return flat


def _listed(tensor: Tensor) -> list[Any]:
    if tensor.datatype == "BYTES":
        try:
            return [element.decode() for element in tensors.unpack(tensor.data, prod(tensor.shape))]
        except UnicodeDecodeError:
            raise Refusal("invalid", f"output {tensor.name!r} is not text: ask for it as binary data") from None
    if tensor.datatype == "BF16":
        raise Refusal("invalid", f"output {tensor.name!r}: BF16 must be sent as binary data")
    array = tensors.to_array(tensor.data, tensor.datatype, tensor.shape)
    listed: list[Any] = array.reshape(-1).tolist()
    return listed
