"""An inference request over HTTP: JSON, with tensors in it or, by the binary extension, behind it.

body = JSON of Inference-Header-Content-Length bytes, then the tensors with ``binary_data_size`` in order

decode() makes bytes of what is text, and finish() text of bytes: both take time by the size of the data, and what is
large goes through them in another process (unpacking.py). The rest takes time by the number of tensors.
NaN and the infinities are written and read as Triton does, ``NaN`` and ``-Infinity``, though JSON has no such numbers.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gemlet.decoding import convert, from_json
from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import About, Call, Refusal, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.regions import UserRegions

Parameters = dict[str, Any]
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48  # of a shape, where each 0 is a 1: libraries multiply all sizes, also of what is empty
MAX_TIMEOUT_US = 1 << 62  # JSON's numbers have no end
MAX_TEXTS = 1 << 20  # elements of BYTES in an input: each costs a step here and another where batches are cut
MAX_TENSOR_BYTES = 64 * 1024**2  # of tensors that come as text, where nothing else is asked for
OURS = frozenset({"timeout", "priority", "binary_data_output", "sequence_id", "sequence_start", "sequence_end"})
MAX_STRUCTURE = 64 * 1024  # bytes of a request beside its tensors: it waits with these, and is not counted
STRUCTURES = 256  # of requests without their data, that are remembered
STRUCTURE_BYTES = 4096  # of one
NOT_JSON = (b"NaN", b"Infinity")
HALF = re.compile(rb"\\u[dD]")  # begins the half of a character that JSON writes as two


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

    def wanted(self, output: str) -> Wanted:
        return self.default if self.outputs is None else self.outputs[output]


def parse(body: tensors.Buffer, header: int | None, regions: UserRegions) -> tuple[list[Tensor], Form, Parameters]:
    """Inputs, the form of the answer and the parameters of a request. ``header``: bytes of JSON, None: all.

    Inputs in shared memory are yet to be read (regions.py). Raises Refusal.
    """
    end = json_end(body, header)
    view = memoryview(body)
    alike = end <= STRUCTURE_BYTES and end < len(body)  # where its data is behind it, clients send the same JSON again
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
    if len(text) > MAX_STRUCTURE:
        _check_structure(request)
    inputs = []
    left = limit
    for each in request.inputs:
        check_shape(each.name, each.shape)
        parameters = each.parameters or {}
        listed = "shared_memory_region" not in parameters and "binary_data_size" not in parameters
        if listed:
            left -= check_size(each.name, each.datatype, each.shape, left)
        data = bytes(listed_bytes(each.name, each.datatype, each.shape, each.data)) if listed else None
        inputs.append(Decoded(each.name, each.datatype, tuple(each.shape), parameters, data))
    outputs = [(each.name, each.parameters or {}) for each in request.outputs or ()]
    return Asked(inputs, request.id, request.parameters or {}, outputs)


def _check_structure(request: _Request) -> None:
    """Raises Refusal."""
    bare = [msgspec.structs.replace(each, data=msgspec.Raw(b"0")) for each in request.inputs]
    try:
        check_structure(len(_encode(msgspec.structs.replace(request, inputs=bare))))
    except (OverflowError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"not an inference request: {error}") from None


def check_structure(nbytes: int) -> None:
    """Raises Refusal if a request has too many bytes beside its tensors."""
    if nbytes > MAX_STRUCTURE:
        message = f"the request has {nbytes} bytes beside its tensors: expected at most {MAX_STRUCTURE}"
        raise Refusal("invalid", message)


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
    are_checked(inputs)
    return inputs, Form("", "", request.id, default, outputs), request.parameters


@lru_cache(STRUCTURES)
def _structure(text: bytes) -> tuple[Asked, Wanted, dict[str, Wanted] | None]:
    """Raises Refusal."""
    return _with_outputs(decode(text))


def _with_outputs(request: Asked) -> tuple[Asked, Wanted, dict[str, Wanted] | None]:
    """A request, how its outputs are sent, and those it asks for. Raises Refusal."""
    default = Wanted(binary=request.parameters.get("binary_data_output") is True)
    return request, default, {name: wanted(parameters, default) for name, parameters in request.outputs} or None


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
    if parameters.get("sequence_id") not in (None, 0, ""):  # it may be a list
        raise Refusal("unsupported", "sequences are not served: requests of a model are independent")
    call.timeout_ms, call.priority = min(timeout, MAX_TIMEOUT_US) / 1000, priority


def render(
    form: Form,
    spec: ModelSpec,
    outputs: list[Tensor],
    regions: UserRegions,
    finished: Mapping[str, Finished],
) -> tuple[bytes, list[tensors.Buffer]]:
    """JSON of the answer, and the binary tensors behind it, which may be views. Raises Refusal.

    finished: of outputs, by name, what finish() gave.
    """
    described: list[dict[str, Any]] = []
    binary: list[tensors.Buffer] = []
    for output in outputs:
        how = form.wanted(output.name)
        ready = finished.get(output.name)
        if ready is None and (how.classes or not (how.region or how.binary)):
            ready = finish(output, how, batched=bool(spec.max_batch))
        tensor = output if ready is None else ready.tensor
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if how.region:  # without parameters: Triton's clients take those for binary data
            if ready is None or not ready.written:
                into_region(tensor, how, regions)
        elif how.binary:
            one["parameters"] = {"binary_data_size": len(tensor.data)}
            binary.append(tensor.data)
        elif ready is not None:
            one["data"] = msgspec.Raw(ready.text)
        described.append(one)
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": str(spec.version), "outputs": described}
    if form.id:
        answer["id"] = form.id
    return _encode(answer), binary


class Finished(msgspec.Struct, frozen=True):
    """An output as it is sent: its classes in its place if those were asked for; as JSON, or empty if not wanted.

    written: into its region.
    """

    tensor: Tensor
    text: bytes
    written: bool = False


def finish(tensor: Tensor, how: Wanted, *, batched: bool) -> Finished:
    """Raises Refusal."""
    if how.classes:
        tensor = classify(tensor, how.classes, batched=batched)
    if how.region or how.binary:
        return Finished(tensor, b"")
    return Finished(tensor, _text(tensor))


def costly(form: Form, outputs: list[Tensor], *, text: bool) -> list[tuple[Tensor, Wanted]]:
    """Outputs that become text, if any do, or are classified: what takes time by its size."""
    found = []
    for tensor in outputs:
        how = form.wanted(tensor.name)
        if how.classes or (text and not (how.region or how.binary)):
            found.append((tensor, how))
    return found


def shared(form: Form, outputs: list[Tensor]) -> list[tuple[Tensor, Wanted]]:
    """Outputs that go into shared memory as they are: writing them takes time by their size."""
    found = []
    for tensor in outputs:
        how = form.wanted(tensor.name)
        if how.region and not how.classes:
            found.append((tensor, how))
    return found


def texts(inputs: list[Tensor]) -> list[Tensor]:
    """Inputs of BYTES that are not known to be such: what takes time by its size before a request is queued."""
    return [tensor for tensor in inputs if tensor.datatype == "BYTES" and not tensor.checked]


def are_checked(inputs: list[Tensor]) -> None:
    """BYTES that are here were checked in another process; what is in shared memory comes later."""
    for tensor in inputs:
        tensor.checked = tensor.datatype == "BYTES" and len(tensor.data) > 0


def about(form: Form, parameters: Parameters) -> About:
    """What a model that gets requests is told beside the inputs. Raises Refusal."""
    own = {name: value for name, value in parameters.items() if name not in OURS}
    timeout = min(parameters.get("timeout", 0), MAX_TIMEOUT_US)
    try:
        return form.id, tuple(form.outputs or ()), timeout, _encode(own).decode() if own else ""
    except (OverflowError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"the parameters cannot be told to {form.model}: {error}") from None


def chosen(form: Form, outputs: list[Tensor], *, sure: bool = True) -> list[Tensor]:
    """The outputs that were asked for, in that order. If each is ``sure``ly there: raises KeyError otherwise."""
    if form.outputs is None:
        return outputs
    there = {tensor.name: tensor for tensor in outputs}
    return [there[name] for name in form.outputs if sure or name in there]


def check_outputs(form: Form, spec: ModelSpec) -> None:
    """Raises Refusal, before the model runs, if a requested output does not exist."""
    if form.outputs is None:
        return
    known = [output.name for output in spec.outputs]
    for name in form.outputs:
        if name not in known:
            raise Refusal("invalid", f"{spec.name} has no output {name!r}; it has {', '.join(sorted(known))}")


def check_place(tensor: Tensor, how: Wanted) -> None:
    """Raises Refusal unless an output fits where it is to be in shared memory."""
    if len(tensor.data) > how.nbytes:
        raise Refusal("invalid", f"output {tensor.name!r} has {len(tensor.data)} bytes, its place {how.nbytes}")


def into_region(tensor: Tensor, how: Wanted, regions: UserRegions) -> None:
    """Writes an output into shared memory. Raises Refusal."""
    check_place(tensor, how)
    regions.write(how.region, how.offset, tensor.data)


def classify(tensor: Tensor, count: int, *, batched: bool) -> Tensor:
    """The highest ``count`` values of each row as BYTES "value:index", Triton's classification extension."""
    if tensor.datatype == "BYTES":
        raise Refusal("invalid", f"output {tensor.name!r} is BYTES, which have no highest value")
    array = tensors.to_array(tensor.data, tensor.datatype, tensor.shape)
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    best = np.argsort(rows, axis=1, kind="stable")[:, ::-1][:, :count]
    message = [
        f"{_number(row[index])}:{index}".encode() for row, order in zip(rows, best, strict=True) for index in order
    ]
    shape = (rows.shape[0], best.shape[1]) if batched else (best.shape[1],)
    return Tensor(tensor.name, "BYTES", shape, tensors.pack(message))


def _number(value: Any) -> str:
    """As C++ prints it: whole numbers whole, others with six places."""
    return f"{float(value):f}" if np.issubdtype(value.dtype, np.floating) else str(int(value))


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
        if not any(word in whole for word in NOT_JSON):
            raise
    return convert(_raw_data(_loads(whole)), _Request)


def _loads(text: bytes) -> Any:
    """As json.loads(), without halves of characters, which cannot be written again. Raises ValueError."""
    document = json.loads(text)
    if b"\\u" in text and HALF.search(text):  # most have no such escape, and the first look copies nothing
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string has half a character (\\ud800 to \\udfff)") from None
    return document


def _raw_data(document: Any) -> Any:
    """The document with the data of its inputs as text again, for what decodes inputs one by one."""
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for each in inputs if isinstance(inputs, list) else ():
        if isinstance(each, dict) and "data" in each:
            each["data"] = msgspec.Raw(json.dumps(each["data"]).encode())
    return document


def listed_bytes(name: str, datatype: str, shape: list[int], raw: msgspec.Raw) -> tensors.Buffer:
    """The bytes of a tensor that is a list in JSON, flat or nested. Raises Refusal."""
    if not bytes(raw):
        raise Refusal("invalid", f"input {name!r} has no data")
    if datatype not in tensors.ELEMENTS and datatype != "BYTES":
        raise Refusal("invalid", f"input {name!r}: {datatype!r} is not a valid datatype")
    if datatype == "BF16":
        raise Refusal("invalid", f"input {name!r}: BF16 must be sent as binary data")
    try:
        flat = _flat(_list(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"input {name!r}: {error}") from None
    check_count(name, len(flat), shape)
    check_texts(name, datatype, shape)
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


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raises Refusal."""
    if len(shape) > MAX_DIMENSIONS:
        raise Refusal("invalid", f"input {name!r} has {len(shape)} dimensions: expected at most {MAX_DIMENSIONS}")
    if shape and max(shape) > MAX_ELEMENTS:  # which may have more digits than Python writes
        raise Refusal("invalid", f"input {name!r}: its shape has a size above {MAX_ELEMENTS}")
    if any(size < 0 for size in shape) or prod([size or 1 for size in shape]) > MAX_ELEMENTS:
        raise Refusal("invalid", f"input {name!r}: {list(shape)} is not a valid shape")


def check_count(name: str, count: int, shape: Sequence[int]) -> None:
    """Raises Refusal unless ``count`` elements make a tensor of this shape."""
    if count != prod(shape):
        raise Refusal("invalid", f"input {name!r} has {count} elements; shape {list(shape)} has {prod(shape)}")


def check_size(name: str, datatype: str, shape: Sequence[int], limit: int) -> int:
    """Bytes of a tensor whose elements come one by one, known before they are read. Raises Refusal beyond ``limit``."""
    nbytes = prod(shape) * (tensors.ELEMENTS[datatype][0] if datatype in tensors.ELEMENTS else tensors.LENGTH_BYTES)
    if nbytes > limit:
        raise Refusal("invalid", f"input {name!r} has {nbytes} bytes as a tensor: expected at most {limit}")
    return nbytes


def check_texts(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Raises Refusal if an input has more elements of BYTES than are taken."""
    if datatype == "BYTES" and prod(shape) > MAX_TEXTS:
        raise Refusal("invalid", f"input {name!r} has {prod(shape)} elements of BYTES: expected at most {MAX_TEXTS}")


def _list(raw: msgspec.Raw) -> Any:
    try:
        return from_json(raw, Any)
    except msgspec.DecodeError:
        text = bytes(raw)
        if not any(word in text for word in NOT_JSON):
            raise
        return _loads(text)


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


def _text(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        try:
            return _encode([element.decode() for element in tensors.unpack(tensor.data, prod(tensor.shape))])
        except UnicodeDecodeError:
            raise Refusal("invalid", f"output {tensor.name!r} is not text: ask for it as binary data") from None
    if tensor.datatype == "BF16":
        raise Refusal("invalid", f"output {tensor.name!r}: BF16 must be sent as binary data")
    array = tensors.to_array(tensor.data, tensor.datatype, tensor.shape)
    listed = array.reshape(-1).tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json.dumps(listed, separators=(",", ":")).encode()
    return _encode(listed)
