"""Input tensors made from what a server says of a model, with a seeded generator: the same seed, the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gemlet.errors import InvalidValue
from gemlet.inference_protocol import tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HIGHEST_INTEGER = 100  # token numbers and indices are valid in any vocabulary worth serving
STRING_BYTES = 16
MOST_BYTES = 1 << 30  # of an input: the server says how large it is, and may be anybody's


@dataclass(frozen=True, slots=True)
class Declared:
    """An input as the model's metadata describe it; -1 is any size, in the first place that of the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor; ``data`` as in the binary extension of the protocol."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    def elements(self) -> list[object]:
        """Row-major, as JSON has them."""
        if self.datatype == "BYTES":
            return [element.decode() for element in tensors.unpack(self.data, prod(self.shape))]
        return list(tensors.to_array(self.data, self.datatype, self.shape).reshape(-1).tolist())


def make(
    declared: Sequence[Declared], rows: int, shapes: Mapping[str, tuple[int, ...]], chance: np.random.Generator
) -> list[Input]:
    """One tensor for each declared input. ``shapes``, without the batch, fill in what is declared as -1.

    Raises InvalidValue if a size is unknown.
    """
    made = []
    for tensor in declared:
        shape = _shape(tensor, rows, shapes.get(tensor.name))
        made.append(Input(tensor.name, tensor.datatype, shape, _data(tensor, shape, chance)))
    return made


def _shape(tensor: Declared, rows: int, given: tuple[int, ...] | None) -> tuple[int, ...]:
    batched = bool(tensor.shape) and tensor.shape[0] == -1
    rest = tensor.shape[1:] if batched else tensor.shape
    if given is not None:
        fits = len(given) == len(rest) and all(wanted in {-1, size} for size, wanted in zip(given, rest, strict=True))
        if not fits:
            raise InvalidValue(
                f"input {tensor.name!r} is {list(rest)}, not {list(given)}",
                hint="give sizes that match; -1 of the model matches any size",
            )
        rest = given
    if -1 in rest:
        sizes = ",".join("16" if size == -1 else str(size) for size in rest)
        raise InvalidValue(
            f"input {tensor.name!r} is {list(rest)}, and the size in place of -1 is unknown",
            hint=f"give it, such as --shape {tensor.name}:{sizes}",
        )
    if not batched and rows != 1:
        raise InvalidValue(
            f"input {tensor.name!r} has no batch dimension: {list(tensor.shape)}",
            hint="leave --batch out, or write --batch 1",
        )
    shape = (rows, *rest) if batched else rest
    if any(size < 0 for size in shape):
        raise InvalidValue(f"input {tensor.name!r} has a negative size: {list(tensor.shape)}")
    if (nbytes := prod(shape) * tensors.ELEMENTS.get(tensor.datatype, (STRING_BYTES,))[0]) > MOST_BYTES:
        raise InvalidValue(
            f"input {tensor.name!r} has {nbytes} bytes with {list(shape)}: expected at most {MOST_BYTES}"
        )
    return shape


def _data(tensor: Declared, shape: tuple[int, ...], chance: np.random.Generator) -> bytes:
    if tensor.datatype == "BYTES":
        letters = chance.integers(97, 123, size=(prod(shape), STRING_BYTES), dtype=np.uint8)
        return tensors.pack(row.tobytes() for row in letters)
    if tensor.datatype not in tensors.ELEMENTS:
        raise InvalidValue(f"input {tensor.name!r} has datatype {tensor.datatype!r}, which the protocol does not have")
    element = np.dtype(tensors.ELEMENTS[tensor.datatype][1])
    if tensor.datatype == "BF16":  # the upper half of a float
        return (chance.random(shape, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if element.kind == "f":
        return chance.random(shape).astype(element).tobytes()
    if element.kind == "b":
        return chance.integers(0, 2, size=shape).astype(element).tobytes()
    highest = 256 if tensor.datatype == "UINT8" else HIGHEST_INTEGER
    return chance.integers(0, highest, size=shape).astype(element).tobytes()
