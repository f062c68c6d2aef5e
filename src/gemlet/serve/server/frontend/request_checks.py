"""What a request may have, in either protocol: shapes, sizes, texts, and bytes beside its tensors."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.dispatch.call import Tensor

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48  # of a shape, where each 0 is a 1: libraries multiply all sizes, also of what is empty
MAX_TEXTS = 1 << 20  # elements of BYTES in an input: each costs a step here and another where batches are cut
MAX_STRUCTURE = 64 * 1024  # bytes of a request beside its tensors
STRUCTURES = 256  # of requests without their data, that are remembered
STRUCTURE_BYTES = 4096  # of one


def check_structure(nbytes: int) -> None:
    """Raises Refusal if a request has too many bytes beside its tensors."""
    if nbytes > MAX_STRUCTURE:
        message = f"the request has {nbytes} bytes beside its tensors: expected at most {MAX_STRUCTURE}"
        raise Refusal("invalid", message)


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


def texts(inputs: list[Tensor]) -> list[Tensor]:
    """Inputs of BYTES that are not known to be such: what takes time by its size before a request is queued."""
    return [tensor for tensor in inputs if tensor.datatype == "BYTES" and not tensor.checked]


def are_checked(inputs: list[Tensor]) -> None:
    """BYTES that are here were checked in another process; what is in shared memory comes later."""
    for tensor in inputs:
        tensor.checked = tensor.datatype == "BYTES" and len(tensor.data) > 0
