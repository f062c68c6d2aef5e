"""Inference requests over gRPC whose data is raw, which is what clients send, read without a message of protobuf's.

Encoders write the fields of a message in the order of their numbers. So such a request is its structure (names, shapes,
parameters, outputs wanted), with the id of the request in it, and then the bytes of its tensors. Clients send the same
structure again and again: what it says is remembered, by its bytes alone. A request of any other form is none of ours,
and is read by infer_messages.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from gemlet.inference_protocol import inference_pb2
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.server.frontend.answer_form import Form
from gemlet.serve.server.frontend.infer_messages import form_of, varint
from gemlet.serve.server.frontend.request_checks import STRUCTURE_BYTES, STRUCTURES, check_shape

if TYPE_CHECKING:
    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.server.frontend.answer_form import Parameters, Wanted

MOST_FIELDS = 64  # of a message
# Tags of a ModelInferRequest's fields, all of which are bytes with their length before them.
ID, RAW = 3 << 3 | 2, 7 << 3 | 2
BEFORE_RAW = frozenset(number << 3 | 2 for number in range(1, 7))


class Structure(NamedTuple):
    """All of a request but its id and its data."""

    model: str
    version: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, datatype, shape
    default: Wanted
    outputs: dict[str, Wanted] | None
    parameters: Parameters


def parse(message: Buffer) -> tuple[list[Tensor], Form, Parameters] | None:
    """As infer_messages.parse(), of bytes; None: the request is not of this form, or is not valid."""
    found = _divided(message)
    if found is None:
        return None
    structure, name, raw = found
    try:
        known = _structure(structure)
        if known is None or len(known.inputs) != len(raw):
            return None
        own = name.decode()
    except (DecodeError, Refusal, UnicodeDecodeError):
        return None
    given = [
        Tensor(name, datatype, shape, data) for (name, datatype, shape), data in zip(known.inputs, raw, strict=True)
    ]
    return given, Form(known.model, known.version, own, known.default, known.outputs), known.parameters


def _divided(message: Buffer) -> tuple[bytes, bytes, list[memoryview]] | None:
    """Structure, id and raw contents; None: fields are in another order, or too many, or there are no raw contents."""
    view = memoryview(message)
    at = before = id_at = id_start = id_end = 0
    structure_end = -1
    raw: list[memoryview] = []
    try:
        for _ in range(MOST_FIELDS):
            tag, size, start = message[at], message[at + 1], at + 2
            if size > 0x7F:
                size, start = varint(message, at + 1)
            end = start + size
            if tag == RAW:
                if structure_end < 0:
                    structure_end = at
                raw.append(view[start:end])
            elif tag not in BEFORE_RAW or tag < before or (tag == before and tag <= ID):
                return None
            elif tag == ID:
                id_at, id_start, id_end = at, start, end
            at, before = end, tag
            if at >= len(message):
                break
    except IndexError:
        return None
    if at != len(message) or before != RAW or structure_end > STRUCTURE_BYTES:
        return None
    structure = bytes(view[:structure_end])
    if not id_end:
        return structure, b"", raw
    return structure[:id_at] + structure[id_end:], structure[id_start:id_end], raw


@lru_cache(STRUCTURES)
def _structure(structure: bytes) -> Structure | None:
    """None: its inputs are not all raw. Raises DecodeError, Refusal."""
    request = inference_pb2.ModelInferRequest.FromString(structure)
    if any(each.HasField("contents") or "shared_memory_region" in each.parameters for each in request.inputs):
        return None
    for each in request.inputs:
        check_shape(each.name, each.shape)
    inputs = tuple([(each.name, each.datatype, tuple(each.shape)) for each in request.inputs])
    default, outputs, parameters = form_of(request)
    return Structure(request.model_name, request.model_version, inputs, default, outputs, parameters)
