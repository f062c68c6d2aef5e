"""The way of a request: checked, queued by queue.py, executed in a batch, answered. One event loop; a request has no
task of its own.

Each call is answered exactly once, with outputs or with a Refusal. A batch goes to an executor's process; batches of
models that do nothing are answered in this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal, Tensor, check
from gemlet.serve.dispatch.expectation import Expectation
from gemlet.serve.dispatch.queue import Assignment, Batch, Dispatcher, Drop, GpuLetState
from gemlet.serve.dispatch.statistics import Statistics
from gemlet.serve.dispatch.waiting import Request
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.executor import ExecutorDied, Input
from gemlet.serve.models.specification import ModelError, ModelSpec
from gemlet.serve.plan.model import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.execution.executor import Executor, Result

logger = logging.getLogger(__name__)

MAX_TRIES = 2  # of a call whose executor died under it
MAX_WAITING = 20_000  # calls of one model in its queue
MAX_WAITING_BYTES = 1 << 30  # of all inputs that wait
THROUGHPUT_PRIORITY_OFFSET = (
    1_000_000  # added to the priority of models of class throughput: they go after all others of their gpu-let
)
EMPTY = Plan(policy="none", device="", origin="", gpus=(), demands=())
IN_PROCESS = -1  # the index of the GPU that stands for this process


def now_ms() -> float:
    return time.monotonic() * 1000


@dataclass(slots=True)
class ServedModel:
    """A model that requests may name."""

    spec: ModelSpec
    statistics: Statistics = field(default_factory=Statistics)
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """Where a gpu-let is: its executor, None for this process, and what it is called there."""

    executor: Executor | None
    name: str


@dataclass(slots=True)
class _Work:
    """A batch at an executor; it may have gone there in several parts, because its requests differ in shape."""

    batch: Batch
    parts: int


class Engine:
    """Models, queues and routes. ``drop`` False serves late rather than never; ``clock`` gives milliseconds."""

    def __init__(self, *, drop: bool = True, clock: Callable[[], float] = now_ms) -> None:
        self.models: dict[str, ServedModel] = {}
        self.expectation = Expectation()
        self.closing = ""  # why new calls are refused
        self.waiting_bytes = 0
        self.in_flight = 0
        self._clock = clock
        self._dispatcher = Dispatcher(EMPTY, self.expectation, self._max_batch, drop=drop)
        self._routes: dict[GpuLetState, Route] = {}
        self._arrived: dict[str, int] = {}
        self._ended = asyncio.Event()  # a batch of an earlier plan

    def infer(self, call: Call) -> None:
        """Takes a call; its answer comes by ``call.answer``, perhaps before this returns."""
        served = self.models.get(call.model)
        if served is None:
            call.answer(self._unknown(call.model))
            return
        spec, statistics = served.spec, served.statistics
        statistics.arrived += 1
        try:
            if call.version and call.version != str(spec.version):
                raise Refusal("unknown", f"{spec.name} has no version {call.version} here: expected {spec.version}")
            rows = check(spec, call.inputs)
            call.spec = spec
            self._admit(call)
        except Refusal as refusal:
            statistics.refuse(refusal.reason, 0.0)
            call.answer(refusal)
            return
        self._arrived[spec.name] = self._arrived.get(spec.name, 0) + 1
        slo, may_be_late, priority = spec.slo_ms, False, call.priority or spec.priority
        if spec.service_class == "throughput":
            may_be_late, priority = not call.timeout_ms, priority + THROUGHPUT_PRIORITY_OFFSET
        if 0 < call.timeout_ms < slo:
            slo = call.timeout_ms
        self.waiting_bytes += call.nbytes
        self.in_flight += 1
        self._enqueue(Request(spec.name, call.arrived, call.arrived + slo, call, rows, priority, may_be_late))

    def adopt(self, plan: Plan, routes: Callable[[GpuLetState], Route]) -> None:
        """Serves by this plan from now on. ``routes``: where each of its gpu-lets is."""
        running = {gpu_let: route for gpu_let, route in self._routes.items() if gpu_let.running is not None}
        self._dispatcher.adopt(plan)
        self._routes = running
        for gpu_let in self._dispatcher.gpu_lets:
            route = self._routes[gpu_let] = routes(gpu_let)
            gpu_let.suspended = route.executor is not None and route.executor.died.is_set()
        self.pump()

    async def settled(self) -> None:
        """Returns when no gpu-let of an earlier plan runs a batch any more."""
        while self._old_gpu_lets_at_work():
            self._ended.clear()
            await self._ended.wait()

    def _old_gpu_lets_at_work(self) -> bool:
        return any(gpu_let.retired and gpu_let.running is not None for gpu_let in self._routes)

    def suspend(self, executor: Executor) -> None:
        """Starts nothing there until resume(); what waits goes on waiting."""
        for gpu_let, route in self._routes.items():
            if route.executor is executor:
                gpu_let.suspended = True

    def resume(self, executor: Executor, instead_of: Executor) -> None:
        """``executor`` took the place of one that died."""
        for gpu_let, route in list(self._routes.items()):
            if route.executor is instead_of:
                self._routes[gpu_let] = Route(executor, route.name)
                gpu_let.suspended = False
        self.pump()

    def pump(self) -> None:
        """Starts whatever can start now."""
        for batch in self._dispatcher.start(self._clock()):
            self._execute(batch)
        self._tell_dropped()

    def expire(self) -> None:
        """Answers what waited past its deadline; to be called every few milliseconds."""
        self._dispatcher.expire(self._clock())
        self._tell_dropped()

    def stuck(self, limit_ms: float) -> set[Executor]:
        """Executors that have been at one batch for longer than that."""
        began = self._clock() - limit_ms
        return {
            route.executor
            for gpu_let, route in self._routes.items()
            if route.executor is not None and gpu_let.running is not None and gpu_let.running.started < began
        }

    def abandon(self, message: str) -> None:
        """Refuses all waiting requests."""
        for drop in self._dispatcher.abandon(message):
            self._refuse_dropped(drop)

    def counts(self) -> Mapping[str, int]:
        """Requests that arrived by model since the last call."""
        counted, self._arrived = self._arrived, {}
        return {name: counted.get(name, 0) for name in self.models}

    def waiting(self, model: str) -> int:
        """Calls in its queue."""
        queue = self._dispatcher.queues.get(model)
        return len(queue) if queue is not None else 0

    def serves(self, model: str) -> bool:
        """Whether the plan in force has a gpu-let for it that is not suspended."""
        return any(model in gpu_let.places and not gpu_let.suspended for gpu_let in self._dispatcher.gpu_lets)

    def _admit(self, call: Call) -> None:
        if self.closing:
            raise Refusal("unavailable", self.closing, retry_s=1)
        call.nbytes = sum([len(tensor.data) for tensor in call.inputs])
        if self.waiting_bytes + call.nbytes > MAX_WAITING_BYTES:
            message = f"waiting requests already take {self.waiting_bytes} bytes"
            raise Refusal("overload", message, retry_s=1)
        queue = self._dispatcher.queues.get(call.model)
        if queue is not None and len(queue) >= MAX_WAITING:
            raise Refusal("overload", f"{len(queue)} requests for {call.model} already wait", retry_s=1)

    def _enqueue(self, request: Request) -> None:
        now = self._clock()
        self._dispatcher.submit(request)
        for batch in self._dispatcher.start(now, request.model) if self._dispatcher.serves(request.model) else ():
            self._execute(batch)
        self._tell_dropped()

    def _max_batch(self, model: str) -> int:
        served = self.models.get(model)
        return max(1, served.spec.max_batch) if served is not None else 1

    def _execute(self, batch: Batch) -> None:
        """Sends a batch on its way, and whatever is served in this process after it."""
        following: list[Batch] = [batch]
        while following:
            batch = following.pop()
            route = self._routes[batch.gpu_let]
            served = self.models.get(batch.place.model)
            for request in batch.requests:
                self.waiting_bytes -= request.payload.nbytes
            if served is None:
                for request in batch.requests:
                    self._refuse(request, self._unknown(request.model))
            elif not self._fitting(served.spec, batch):
                pass
            elif route.executor is None:
                self._answer_here(served, batch)
            else:
                self._send(served.spec, route.executor, route.name, batch)
                continue
            following += self._dispatcher.finish(batch, self._clock(), whole=False)

    def _fitting(self, spec: ModelSpec, batch: Batch) -> bool:
        """Refuses what came before the model was loaded anew and does not fit it now; whether anything is left."""
        if any(request.payload.spec is not spec for request in batch.requests):
            fitting = []
            for request in batch.requests:
                try:
                    if check(spec, request.payload.inputs) != request.rows:
                        raise Refusal("invalid", "its shapes have changed")
                    fitting.append(request)
                except Refusal as refusal:
                    message = f"{spec.name} was reloaded while the request waited: {refusal.message}"
                    self._refuse(request, Refusal("invalid", message))
            batch.requests[:] = fitting
        return bool(batch.requests)

    def _answer_here(self, served: ServedModel, batch: Batch) -> None:
        """A model that does nothing: an output is the input of the same place, or zeros."""
        spec = served.spec
        for request in batch.requests:
            inputs = request.payload.inputs
            outputs = []
            for number, output in enumerate(spec.outputs):
                if number < len(inputs) and inputs[number].datatype == output.datatype:
                    outputs.append(Tensor(output.name, output.datatype, inputs[number].shape, inputs[number].data))
                else:
                    outputs.append(_zeros(spec, output.name, output.datatype, output.shape, request.rows))
            self._answer(served, request, outputs, batch.started, 0.0)
        served.statistics.ran(batch.rows, 0.0)

    def _send(self, spec: ModelSpec, executor: Executor, gpu_let: str, batch: Batch) -> None:
        parts: dict[tuple[tuple[int, ...], ...], list[Request]] = {}
        if len(batch.requests) == 1 or all(-1 not in tensor.shape for tensor in spec.inputs):
            parts[()] = batch.requests
        else:
            for request in batch.requests:
                parts.setdefault(tuple([tensor.shape[1:] for tensor in request.payload.inputs]), []).append(request)
        work = _Work(batch, len(parts))
        for requests in parts.values():
            future = executor.run(gpu_let, spec.name, _joined(spec, requests), sum([each.rows for each in requests]))
            future.add_done_callback(partial(self._came_back, work, requests))

    def _came_back(self, work: _Work, requests: list[Request], future: asyncio.Future[Result]) -> None:
        batch, now = work.batch, self._clock()
        error = future.exception()
        served = self.models.get(batch.place.model)
        whole = error is None and served is not None and len(requests) == len(batch.requests)
        if error is None and served is not None:
            rows = sum([request.rows for request in requests])
            served.statistics.ran(rows, future.result().ms)
            self._answer_all(served, batch, requests, future.result())
        elif error is None:
            for request in requests:
                self._refuse(request, self._unknown(request.model))
        else:
            executor = self._routes[batch.gpu_let].executor
            if isinstance(error, ExecutorDied) and executor is not None:
                self.suspend(executor)
            self._went_wrong(batch.place, requests, error)
        work.parts -= 1
        if work.parts == 0:
            for following in self._dispatcher.finish(batch, now, whole=whole):
                self._execute(following)
            if batch.gpu_let.retired:
                self._ended.set()
        if error is not None:
            self.pump()  # a batch that must run again may find another gpu-let free
        self._tell_dropped()

    def _answer_all(self, served: ServedModel, batch: Batch, requests: list[Request], result: Result) -> None:
        rows = [request.rows for request in requests]
        answers: list[list[Tensor]] = [[] for _ in requests]
        try:
            for tensor, data in result.outputs:
                if not served.spec.max_batch or len(requests) == 1:
                    self._check_rows(served.spec, tensor.shape, rows)
                    answers[0].append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
                    continue
                for answer, count, part in zip(
                    answers, rows, tensors.split(data, tensor.datatype, tensor.shape, rows), strict=True
                ):
                    answer.append(Tensor(tensor.name, tensor.datatype, (count, *tensor.shape[1:]), part))
        except tensors.BadTensor as error:
            for request in requests:
                self._refuse(request, Refusal("failed", f"{served.spec.name} gave an output of {error}"))
            return
        for request, answer in zip(requests, answers, strict=True):
            self._answer(served, request, answer, batch.started, result.ms)

    @staticmethod
    def _check_rows(spec: ModelSpec, shape: tuple[int, ...], rows: list[int]) -> None:
        if spec.max_batch and (not shape or shape[0] != rows[0]):
            raise tensors.BadTensor(f"shape {list(shape)} for a batch of {rows[0]} rows")

    def _went_wrong(self, place: Assignment, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            call: Call = request.payload
            if isinstance(error, GpuLetGone | ExecutorDied) and not self.closing:
                call.tries += isinstance(error, ExecutorDied)
                if call.tries < MAX_TRIES:
                    self._again(request)
                    continue
                message = (
                    f"the executor died {call.tries} times while it ran requests for {request.model} with this one"
                )
                self._refuse(request, Refusal("failed", message))
            elif isinstance(error, GpuLetGone | ExecutorDied):
                self._refuse(request, Refusal("unavailable", self.closing, retry_s=1))
            elif isinstance(error, ModelError):
                self._refuse(request, Refusal("failed", error.message))
            else:
                logger.error("a batch of %s failed: %s", place.model, error, exc_info=error)
                self._refuse(request, Refusal("failed", f"{type(error).__name__}: {error}"))

    def _again(self, request: Request) -> None:
        """Puts a request whose executor is gone back into its queue."""
        served = self.models.get(request.model)
        if served is not None:
            served.statistics.retried += 1
        self.waiting_bytes += request.payload.nbytes
        self._dispatcher.submit(request)

    def _answer(
        self, served: ServedModel, request: Request, outputs: list[Tensor], started: float, compute_ms: float
    ) -> None:
        latency = self._clock() - request.arrived
        served.statistics.answered(
            request.rows, started - request.arrived, compute_ms, latency, request.deadline - request.arrived
        )
        self.in_flight -= 1
        request.payload.answer(outputs)

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        served = self.models.get(request.model)
        if served is not None:
            served.statistics.refuse(refusal.reason, self._clock() - request.arrived)
        self.in_flight -= 1
        request.payload.answer(refusal)

    def _tell_dropped(self) -> None:
        for drop in self._dispatcher.drops():
            self._refuse_dropped(drop)

    def _refuse_dropped(self, drop: Drop) -> None:
        request = drop.request
        self.waiting_bytes -= request.payload.nbytes
        if not drop.late:
            self._refuse(request, Refusal("unavailable", drop.reason, retry_s=1))
            return
        waited, deadline = self._clock() - request.arrived, request.deadline - request.arrived
        message = f"{drop.reason}: the deadline is {deadline:.4g} ms after arrival, the request waited {waited:.4g} ms"
        if drop.expected is not None:
            message += f", and its batch would take {drop.expected:.4g} ms"
        self._refuse(request, Refusal("deadline", message))

    def _unknown(self, model: str) -> Refusal:
        return Refusal("unknown", f"there is no model {model!r} here; served: {', '.join(self.models) or 'none'}")


def _joined(spec: ModelSpec, requests: list[Request]) -> list[Input]:
    """The inputs of a batch: the bytes of its requests, one after the other along axis 0."""
    joined = []
    for number, tensor in enumerate(spec.inputs):
        given = [request.payload.inputs[number] for request in requests]
        shape = given[0].shape
        if spec.max_batch:
            shape = (sum([each.shape[0] for each in given]), *shape[1:])
        parts = [each.data for each in given]
        joined.append(Input(tensor.name, tensor.datatype, shape, parts, sum([len(part) for part in parts])))
    return joined


def _zeros(spec: ModelSpec, name: str, datatype: str, shape: tuple[int, ...], rows: int) -> Tensor:
    fixed = tuple([1 if size == -1 else size for size in shape])
    whole = (rows, *fixed) if spec.max_batch else fixed
    if datatype == "BYTES":
        count = 1
        for size in whole:
            count *= size
        return Tensor(name, datatype, whole, tensors.pack([b""] * count))
    return Tensor(name, datatype, whole, bytes(tensors.nbytes(datatype, whole)))
