"""The tensors of a batch: those of its requests put together, and its outputs parted again. Pure."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Tensor
from gemlet.serve.execution.executor import Input
from gemlet.serve.execution.protocol import RequestInfo, check_outputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.execution.protocol import ArenaTensor
    from gemlet.serve.models.specification import ModelSpec

PART_BYTES = 64 * 1024**2  # of inputs: where the arena has no room, they are joined and encoded at once, and written


def alike(spec: ModelSpec, requests: list[Request]) -> list[list[Request]]:
    """The requests in parts that can be one batch: all in one, unless their inputs differ in shape or number."""
    if len(requests) == 1 or not any(-1 in tensor.shape or tensor.optional for tensor in spec.inputs):
        return [requests]
    parts: dict[tuple[tuple[str, tuple[int, ...]], ...], list[Request]] = {}
    for request in requests:
        parts.setdefault(tuple([(each.name, each.shape[1:]) for each in request.payload.inputs]), []).append(request)
    return list(parts.values())


def parts(spec: ModelSpec, requests: list[Request]) -> tuple[list[list[Request]], list[list[Request]]]:
    """As alike(), and of no more than PART_BYTES, or one request: those to be sent at once, and those of which each
    waits for the one before, the last one first."""
    if sum([request.payload.nbytes for request in requests]) <= PART_BYTES:
        return alike(spec, requests), []
    found: list[list[Request]] = []
    for group in alike(spec, requests):
        room = 0
        for request in group:
            room -= request.payload.nbytes
            if room < 0:
                found.append([])
                room = PART_BYTES - request.payload.nbytes
            found[-1].append(request)
    return found[:1], found[:0:-1]


def joined(spec: ModelSpec, requests: list[Request]) -> list[Input]:
    """The inputs of a batch: the bytes of its requests, one after the other along axis 0."""
    whole = []
    for number, tensor in enumerate(requests[0].payload.inputs):
        given = [request.payload.inputs[number] for request in requests]
        shape = given[0].shape
        if spec.max_batch:
            shape = (sum([each.shape[0] for each in given]), *shape[1:])
        parts = [each.data for each in given]
        whole.append(Input(tensor.name, tensor.datatype, shape, parts, sum([len(part) for part in parts])))
    return whole


def infos(requests: Iterable[Request]) -> tuple[RequestInfo, ...]:
    """What a batch is made of, for models that get requests one by one."""
    return tuple([RequestInfo(request.rows, *request.payload.about) for request in requests])


def parted(spec: ModelSpec, outputs: Iterable[tuple[ArenaTensor, Buffer]], rows: Sequence[int]) -> list[list[Tensor]]:
    """Of outputs of a batch, those of each request, which has so many ``rows``. Raises BadTensor."""
    answers: list[list[Tensor]] = [[] for _ in rows]
    for tensor, data in outputs:
        if not spec.max_batch or len(rows) == 1:
            _check_rows(spec, tensor.shape, rows)
            answers[0].append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
            continue
        parts = tensors.split(data, tensor.datatype, tensor.shape, rows, tensor.of_rows)
        for answer, count, part in zip(answers, rows, parts, strict=True):
            answer.append(Tensor(tensor.name, tensor.datatype, (count, *tensor.shape[1:]), part))
    return answers


def echoed(spec: ModelSpec, inputs: Sequence[Tensor], rows: int) -> list[Tensor]:
    """What a model gives that does nothing: an output is the input of the same place, or zeros. Raises ModelError."""
    outputs = []
    for number, output in enumerate(spec.outputs):
        if number < len(inputs) and inputs[number].datatype == output.datatype:
            outputs.append(Tensor(output.name, output.datatype, inputs[number].shape, inputs[number].data))
        else:
            outputs.append(_zeros(spec, output.name, output.datatype, output.shape, rows))
    return outputs


def _check_rows(spec: ModelSpec, shape: tuple[int, ...], rows: Sequence[int]) -> None:
    if spec.max_batch and (not shape or shape[0] != rows[0]):
        raise tensors.BadTensor(f"shape {list(shape)} for a batch of {rows[0]} rows")


def _zeros(spec: ModelSpec, name: str, datatype: str, shape: tuple[int, ...], rows: int) -> Tensor:
    fixed = tuple([1 if size == -1 else size for size in shape])
    whole = (rows, *fixed) if spec.max_batch else fixed
    nbytes = tensors.LENGTH_BYTES * prod(whole) if datatype == "BYTES" else tensors.nbytes(datatype, whole)
    check_outputs(nbytes)
    return Tensor(name, datatype, whole, bytes(nbytes))  # of BYTES: as many lengths of 0
