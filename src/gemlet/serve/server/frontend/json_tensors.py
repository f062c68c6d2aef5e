"""A tensor as a list in JSON, flat or nested, and back.

NaN and the infinities are written and read as Triton does, ``NaN`` and ``-Infinity``, though JSON has no such numbers.
"""

from __future__ import annotations

import json
import re
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gemlet.decoding import from_json
from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import request_checks

if TYPE_CHECKING:
    from gemlet.serve.dispatch.call import Tensor

NOT_JSON = (b"NaN", b"Infinity")
PIECE = 65_536  # elements that become text at once
HALF = re.compile(rb"\\u[dD]")  # begins the half of a character that JSON writes as two
_encode = msgspec.json.Encoder().encode


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
    request_checks.check_count(name, len(flat), shape)
    request_checks.check_texts(name, datatype, shape)
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


def _list(raw: msgspec.Raw) -> Any:
    try:
        return from_json(raw, Any)
    except msgspec.DecodeError:
        whole = bytes(raw)
        if not has_words(whole):
            raise
        return loads(whole)


def has_words(text: bytes) -> bool:
    """Whether it may have what JSON has no number for, and `loads` reads."""
    return any(word in text for word in NOT_JSON)


def loads(text: bytes) -> Any:
    """As json.loads(), without halves of characters, which cannot be written again. Raises ValueError."""
    document = json.loads(text.decode())  # given bytes, it reads halves, and UTF-16
    if b"\\u" in text and HALF.search(text):  # most have no such escape, and the first look copies nothing
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string has half a character (\\ud800 to \\udfff)") from None
    return document


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


def text(tensor: Tensor) -> bytes:
    """An output as a list in JSON. Raises Refusal."""
    if tensor.datatype == "BYTES":
        try:
            return _encode([element.decode() for element in tensors.unpack(tensor.data, prod(tensor.shape))])
        except UnicodeDecodeError:
            raise Refusal("invalid", f"output {tensor.name!r} is not text: ask for it as binary data") from None
    if tensor.datatype == "BF16":
        raise Refusal("invalid", f"output {tensor.name!r}: BF16 must be sent as binary data")
    array = tensors.to_array(tensor.data, tensor.datatype, tensor.shape).reshape(-1)
    pieces = [
        _piece(array[at : at + PIECE]) for at in range(0, array.size, PIECE)
    ]  # whole it is objects of 32 bytes each
    return b"[%b]" % b",".join(pieces)


def _piece(array: np.ndarray) -> bytes:
    listed = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json.dumps(listed, separators=(",", ":")).encode()[1:-1]
    return _encode(listed)[1:-1]
