"""One inference request on its way through the server, whichever protocol it came by, and why it may be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gemlet.inference_protocol import tensors
from gemlet.serve.execution.loan import FREE, Loan

if TYPE_CHECKING:
    from weakref import ReferenceType

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.execution.executor import Executor
    from gemlet.serve.execution.protocol import FailedRequest
    from gemlet.serve.models.specification import ModelSpec, TensorSpec

# What stands in the way: the request itself, its deadline, the load, the state of the server, or the model.
Reason = Literal["invalid", "unknown", "deadline", "overload", "unavailable", "failed", "unsupported"]


BY_CODE: dict[str, Reason] = {  # of a Python model's own errors
    "INVALID_ARG": "invalid",
    "ALREADY_EXISTS": "invalid",
    "NOT_FOUND": "unknown",
    "UNAVAILABLE": "unavailable",
    "UNSUPPORTED": "unsupported",
}


class Refusal(Exception):
    """A request that is answered with this message only. ``retry_s``: seconds after which another try makes sense."""

    def __init__(self, reason: Reason, message: str, *, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.retry_s = retry_s

    def alone(self) -> Refusal:
        """The same without its traceback, whose frames know the request: for code that keeps a refusal."""
        return Refusal(self.reason, self.message, retry_s=self.retry_s)


@dataclass(slots=True)
class Tensor:
    """An input as it came or an output as it goes; ``shape`` with the batch dimension, ``data`` as bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer
    checked: bool = False  # whether `data` is known to be that of BYTES of this shape

    def copied(self) -> Tensor:
        """The same with its own bytes, copied without the interpreter's lock; of no subclass."""
        data = np.empty(len(self.data), np.uint8)  # which is not set to 0 first
        data[:] = np.frombuffer(self.data, np.uint8) if len(data) else data
        return Tensor(self.name, self.datatype, self.shape, data.data, self.checked)


@dataclass(slots=True)
class Answered:
    """What a model gave for a request. ``spec``: of the version that computed it, whichever is served by now.

    loan: of the outputs' data.
    """

    spec: ModelSpec
    outputs: list[Tensor]
    loan: Loan = FREE


About = tuple[str, tuple[str, ...], int, str]  # id, outputs asked for, timeout in microseconds, parameters as JSON
NOTHING: About = ("", (), 0, "")

# Called once for each call, in the server's event loop: with the outputs, valid meanwhile and as their loan is held.
Answer = Callable[[Answered | Refusal], None]


@dataclass(slots=True, eq=False)
class Call:
    """A request. ``arrived`` in ms of time.monotonic(); ``timeout_ms`` and ``priority`` 0 = the model's own.

    request_bytes: of the whole request, where its inputs are views of that, and keep it. id: the client's own. trace:
    W3C's traceparent, as it came. admitted: when it was checked, where that is logged.
    client: whose it is, an address or a user, with its token, or the model that asks; "" if nobody knows.
    chain: of models that work on other requests and wait for this one, the last of which sent it. asker: its executor.
    parent: the number of the batch that it is of; awaited_at: what that waits for, see waits.py. about: the rest of it,
    for models that get requests one by one. spec: what its inputs were checked against. gone: nobody waits for its
    answer, and there will be none. mark: by which blame.py knows it; marks: that and those of what it was asked for.
    """

    model: str
    inputs: list[Tensor]
    answer: Answer
    arrived: float
    version: str = ""
    timeout_ms: float = 0.0
    priority: int = 0
    nbytes: int = 0
    request_bytes: int = 0
    tries: int = 0
    spec: ModelSpec | None = None
    gone: bool = False
    chain: tuple[str, ...] = ()
    parent: int = 0
    awaited_at: str | int = ""
    mark: object | None = None
    marks: frozenset[object] = frozenset()
    asker: ReferenceType[Executor] | None = None
    id: str = ""
    trace: str = ""
    client: str = ""
    admitted: float = 0.0
    about: About = NOTHING


def check(spec: ModelSpec, inputs: list[Tensor]) -> int:
    """Rows of a request that fits the model; brings its inputs into the model's order. Raises Refusal."""
    wanted = spec.inputs
    if len(inputs) != len(wanted):
        given = {tensor.name for tensor in inputs}
        wanted = tuple([tensor for tensor in wanted if tensor.name in given or not tensor.optional])
    if len(inputs) != len(wanted):
        raise _wrong_inputs(spec, inputs)
    if len(wanted) > 1:
        by_name = {tensor.name: tensor for tensor in inputs}
        if len(by_name) != len(wanted) or any(tensor.name not in by_name for tensor in wanted):
            raise _wrong_inputs(spec, inputs)
        inputs[:] = [by_name[tensor.name] for tensor in wanted]
    rows = 1
    for number, (tensor, model) in enumerate(zip(inputs, wanted, strict=True)):
        if tensor.name != model.name:
            raise _wrong_inputs(spec, inputs)
        if tensor.datatype != model.datatype:
            raise Refusal("invalid", f"input {tensor.name!r} is {tensor.datatype}: expected {model.datatype}")
        shape = tensor.shape
        if spec.max_batch:
            if not shape or not 1 <= shape[0] <= spec.max_batch:
                batch = shape[0] if shape else "none"
                raise Refusal(
                    "invalid", f"input {tensor.name!r} has a batch of {batch}: expected 1 to {spec.max_batch}"
                )
            if number and shape[0] != rows:
                raise Refusal(
                    "invalid", f"input {tensor.name!r} has {shape[0]} rows: expected {rows}, as the inputs before it"
                )
            rows = shape[0]
            shape = shape[1:]
        if shape != model.shape:
            _check_shape(tensor, shape, model, batched=bool(spec.max_batch))
        if not tensor.checked:
            check_bytes(tensor)
    return rows


def refusal_of(failed: FailedRequest) -> Refusal:
    """What a model says of a request that it does not answer; unless it says otherwise, the model failed."""
    return Refusal(BY_CODE.get(failed.code, "failed"), failed.message)


def _check_shape(tensor: Tensor, shape: tuple[int, ...], model: TensorSpec, *, batched: bool) -> None:
    fits = len(shape) == len(model.shape) and all(
        size == wanted or (wanted == -1 and size >= 0) for size, wanted in zip(shape, model.shape, strict=True)
    )
    if not fits:
        wanted = [-1, *model.shape] if batched else list(model.shape)
        raise Refusal("invalid", f"input {tensor.name!r} has shape {list(tensor.shape)}: expected {wanted}")


def check_bytes(tensor: Tensor) -> None:
    """Raises Refusal unless its data is what its datatype and shape say; for BYTES that takes time by its size."""
    if tensor.datatype == "BYTES":
        count = 1
        for size in tensor.shape:
            count *= size
        try:
            tensors.unpack(tensor.data, count)
        except tensors.BadTensor as error:
            raise Refusal("invalid", f"input {tensor.name!r}: {error}") from None
        return
    expected = tensors.nbytes(tensor.datatype, tensor.shape)
    if len(tensor.data) != expected:
        raise Refusal(
            "invalid",
            f"input {tensor.name!r} has {len(tensor.data)} bytes; "
            f"{tensor.datatype} {list(tensor.shape)} has {expected}",
        )


def _wrong_inputs(spec: ModelSpec, inputs: list[Tensor]) -> Refusal:
    wanted = ", ".join(tensor.name for tensor in spec.inputs)
    given = ", ".join(tensor.name for tensor in inputs) or "none"
    return Refusal("invalid", f"the request has the inputs {given}: {spec.name} expects {wanted}")
