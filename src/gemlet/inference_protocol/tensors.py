"""Tensors of the Open Inference Protocol: datatypes, sizes, and BYTES as they are on the wire.

A BYTES tensor is its elements in row-major order, each preceded by its length in four bytes, little-endian. Every other
datatype is row-major and little-endian, an element after the other.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Datatype -> bytes of an element, and numpy's name for it; BF16, which numpy has not, travels as uint16.
ELEMENTS: dict[str, tuple[int, str]] = {
    "BOOL": (1, "?"),
    "UINT8": (1, "<u1"),
    "UINT16": (2, "<u2"),
    "UINT32": (4, "<u4"),
    "UINT64": (8, "<u8"),
    "INT8": (1, "<i1"),
    "INT16": (2, "<i2"),
    "INT32": (4, "<i4"),
    "INT64": (8, "<i8"),
    "FP16": (2, "<f2"),
    "BF16": (2, "<u2"),
    "FP32": (4, "<f4"),
    "FP64": (8, "<f8"),
}
DTYPES = {datatype: np.dtype(name) for datatype, (_, name) in ELEMENTS.items()}
_OF_NUMPY = {dtype.newbyteorder("="): datatype for datatype, dtype in DTYPES.items() if datatype != "BF16"}
LENGTH_BYTES = 4  # before each element of BYTES
Buffer = bytes | bytearray | memoryview


class BadTensor(ValueError):
    """The bytes are not such a tensor."""


def datatype_of(array: np.ndarray) -> str:
    """The datatype that an array has by itself: BYTES if it is of objects or text. Raises BadTensor."""
    dtype = array.dtype
    found = _OF_NUMPY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "OSU":
        return "BYTES"
    found = _OF_NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        raise BadTensor(f"{dtype} is not a datatype")
    return found


def nbytes(datatype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of any datatype but BYTES. Raises BadTensor for an unknown datatype."""
    element = ELEMENTS.get(datatype)
    if element is None:
        raise BadTensor(f"{datatype!r} is not a datatype of fixed size")
    return element[0] * prod(shape)


def pack(elements: Iterable[bytes]) -> bytes:
    """BYTES as on the wire."""
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def unpack(data: Buffer, count: int) -> list[bytes]:
    """``count`` elements of BYTES. Raises BadTensor unless ``data`` is exactly that."""
    view = memoryview(data)
    at, end = 0, len(view)
    elements: list[bytes] = []
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(view[at:start], "little")
        if start > end or at > end:
            raise BadTensor(f"BYTES end within element {len(elements)} of {count}")
        elements.append(bytes(view[start:at]))
    if at != end:
        raise BadTensor(f"BYTES go on for {end - at} bytes after element {count}")
    return elements


def row_bytes(elements: Sequence[bytes], shape: Sequence[int]) -> tuple[int, ...]:
    """The bytes of each row along axis 0 of BYTES of this shape, whose elements in order these are, as on the wire."""
    if not shape:
        return ()
    lengths = np.fromiter(map(len, elements), np.int64, len(elements)).reshape(shape[0], prod(shape[1:]))
    return tuple((lengths + LENGTH_BYTES).sum(axis=1).tolist())


def split(
    data: Buffer, datatype: str, shape: Sequence[int], rows: Sequence[int], of_rows: Sequence[int] = ()
) -> list[memoryview]:
    """A batch cut along axis 0 into parts of these numbers of rows; views, no copies. Raises BadTensor.

    of_rows: the bytes of each row of BYTES, which show otherwise only where all its elements are looked at.
    """
    view = memoryview(data)
    if sum(rows) != (shape[0] if shape else -1):
        raise BadTensor(f"shape {list(shape)} for a batch of {sum(rows)} rows")
    if datatype == "BYTES":
        if len(of_rows) != shape[0] or sum(of_rows) != len(view):
            raise BadTensor(f"{len(view)} bytes whose {shape[0]} rows have {sum(of_rows)}")
        ends = [0, *accumulate(of_rows)]
        cuts = [ends[row] for row in accumulate(rows, initial=0)]
    else:
        each = len(view) // shape[0] if shape[0] else 0
        cuts = [row * each for row in accumulate(rows, initial=0)]
    return [view[start:end] for start, end in pairwise(cuts)]


def to_array(data: Buffer, datatype: str, shape: Sequence[int]) -> np.ndarray:
    """An array on top of ``data``; for BYTES a new one of bytes objects. Raises BadTensor if the size is wrong."""
    if datatype == "BYTES":
        array = np.empty(prod(shape), dtype=object)
        array[:] = unpack(data, prod(shape))
        return array.reshape(shape)
    if len(data) != nbytes(datatype, shape):
        raise BadTensor(f"{len(data)} bytes for {datatype} {list(shape)}, which has {nbytes(datatype, shape)}")
    return np.frombuffer(data, dtype=DTYPES[datatype]).reshape(shape)


def to_elements(array: np.ndarray) -> list[bytes]:
    """Those of an array as BYTES has them: text in UTF-8."""
    return [element if isinstance(element, bytes) else str(element).encode() for element in np.asarray(array).flat]


def to_buffer(array: np.ndarray, datatype: str) -> Buffer:
    """The bytes of ``array`` as this datatype: a view where nothing has to change. Raises BadTensor."""
    if datatype == "BYTES":
        return pack(to_elements(array))
    if datatype not in ELEMENTS:
        raise BadTensor(f"{datatype!r} is not a datatype")
    try:
        flat: Any = np.ascontiguousarray(array, dtype=DTYPES[datatype])
    except (TypeError, ValueError) as error:
        raise BadTensor(f"not {datatype}: {error}") from None
    return memoryview(flat.reshape(-1).view(np.uint8)) if flat.size else b""
