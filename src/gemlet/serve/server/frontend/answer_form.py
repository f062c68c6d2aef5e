"""Which outputs an answer has, and how each is sent, in either protocol: as bytes, text, classes, in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.server.frontend import json_tensors

if TYPE_CHECKING:
    from gemlet.serve.models.specification import ModelSpec

Parameters = dict[str, Any]


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


class Finished(msgspec.Struct, frozen=True):
    """An output as it is sent: its classes in its place if those were asked for; as JSON, and ``tensor`` is without its
    data then, or empty if not wanted.
    """

    tensor: Tensor
    text: bytes


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


def finish(tensor: Tensor, how: Wanted, *, batched: bool) -> Finished:
    """What takes time by the size of an output. Raises Refusal."""
    if how.classes:
        tensor = classify(tensor, how.classes, batched=batched)
    if how.region or how.binary:
        return Finished(tensor, b"")
    return Finished(Tensor(tensor.name, tensor.datatype, tensor.shape, b""), json_tensors.text(tensor))


def as_they_are(form: Form) -> bool:
    """Whether all outputs go as bytes, which is usual."""
    default = form.default
    return form.outputs is None and default.binary and not default.region and not default.classes


def costly(form: Form, outputs: list[Tensor], *, text: bool) -> list[tuple[Tensor, Wanted]]:
    """Outputs that become text, if any do, or are classified: what takes time by its size."""
    found = []
    for tensor in outputs:
        how = form.wanted(tensor.name)
        if how.classes or (text and not (how.region or how.binary)):
            found.append((tensor, how))
    return found


def shared(form: Form, outputs: list[Tensor]) -> list[tuple[Tensor, Wanted]]:
    """Outputs that go into shared memory."""
    found = []
    for tensor in outputs:
        how = form.wanted(tensor.name)
        if how.region:
            found.append((tensor, how))
    return found


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


def classify(tensor: Tensor, count: int, *, batched: bool) -> Tensor:
    """The highest ``count`` values of each row as BYTES "value:index", Triton's classification extension."""
    if tensor.datatype in {"BYTES", "BF16"}:  # the latter are whole numbers to numpy, in another order
        raise Refusal("invalid", f"output {tensor.name!r} is {tensor.datatype}, which is not classified")
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
