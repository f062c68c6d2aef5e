"""The end of a request: its one answer, outputs or a Refusal, counted and logged. Of a client that is gone, none."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch import batch_tensors
from gemlet.serve.dispatch.call import Answered, Refusal, Tensor, check, refusal_of
from gemlet.serve.dispatch.request_log import Ran
from gemlet.serve.execution.protocol import FailedRequest
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.dispatcher import Drop
    from gemlet.serve.dispatch.gpu_lets import Batch, GpuLetState
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.dispatch.request_log import RequestLog
    from gemlet.serve.dispatch.served import Models, ServedModel
    from gemlet.serve.execution.executor import Result
    from gemlet.serve.models.specification import ModelSpec


class Answers:
    """``name_of``: what a gpu-let is called where it is. ``clock`` gives milliseconds. ``ended``: is called when a
    request has ended while suspects run alone."""

    def __init__(
        self,
        models: Models,
        quarantine: Quarantine,
        clock: Callable[[], float],
        name_of: Callable[[GpuLetState], str],
        ended: Callable[[], None],
    ) -> None:
        self.log: RequestLog | None = None
        self.in_flight = 0
        self._models = models
        self._quarantine = quarantine
        self._clock = clock
        self._name_of = name_of
        self._ended = ended

    def refuse_call(self, call: Call, refusal: Refusal) -> None:
        """One that was never queued."""
        if self.log is not None:
            self.log.ended(call, refusal.reason, self._clock(), message=refusal.message)
        call.answer(refusal)

    def fitting(self, spec: ModelSpec, batch: Batch) -> bool:
        """Refuses what came before the model was loaded anew and does not fit it now; whether anything is left."""
        for request in batch.requests:
            if request.payload.gone or request.payload.spec is not spec:
                return self._left_of(spec, batch)
        return True

    def _left_of(self, spec: ModelSpec, batch: Batch) -> bool:
        """As fitting(), where something has changed."""
        for request in batch.requests:
            if request.payload.gone:
                self.forget(request)
        batch.requests[:] = [request for request in batch.requests if not request.payload.gone]
        if any(request.payload.spec is not spec for request in batch.requests):
            fitting = []
            for request in batch.requests:
                try:
                    if check(spec, request.payload.inputs) != request.rows:
                        raise Refusal("invalid", "its shapes have changed")
                    fitting.append(request)
                except Refusal as refusal:
                    message = f"{spec.name} was reloaded while the request waited: {refusal.message}"
                    self.refuse(request, Refusal("invalid", message))
            batch.requests[:] = fitting
        return bool(batch.requests)

    def echo(self, served: ServedModel, batch: Batch) -> None:
        """A model that does nothing: an output is the input of the same place, or zeros."""
        spec = served.spec
        for request in batch.requests:
            try:
                outputs = batch_tensors.echoed(spec, request.payload.inputs, request.rows)
            except ModelError as error:
                self.refuse(request, Refusal("failed", f"{spec.name}: {error.message}"))
                continue
            self._answer(served, request, Answered(spec, outputs), batch, 0.0)
        served.statistics.ran(batch.rows, 0.0)

    def answer_all(
        self, served: ServedModel, spec: ModelSpec, batch: Batch, requests: list[Request], result: Result
    ) -> None:
        """Raises ModelError, and answers none then, if the outputs are not those of such a batch."""
        if result.answers is not None:
            self._answer_each(served, spec, batch, requests, result)
            return
        try:
            answers = batch_tensors.parted(spec, result.outputs, [request.rows for request in requests])
        except tensors.BadTensor as error:
            raise ModelError(f"{spec.name} gave an output of {error}") from None
        for request, answer in zip(requests, answers, strict=True):
            self._answer(served, request, Answered(spec, answer, result.loan), batch, result.ms)

    def _answer_each(
        self, served: ServedModel, spec: ModelSpec, batch: Batch, requests: list[Request], result: Result
    ) -> None:
        """Of a model that answers its requests one by one."""
        for request, answer in zip(requests, result.answers or (), strict=True):
            if isinstance(answer, FailedRequest):
                self.refuse(request, refusal_of(answer))
            else:
                outputs = [Tensor(each.name, each.datatype, each.shape, data) for each, data in answer]
                self._answer(served, request, Answered(spec, outputs, result.loan), batch, result.ms)

    def _answer(
        self, served: ServedModel, request: Request, answered: Answered, batch: Batch, compute_ms: float
    ) -> None:
        if request.payload.gone:
            self.forget(request)
            return
        now = self._clock()
        latency = now - request.arrived
        served.statistics.answered(
            request.rows, batch.started - request.arrived, compute_ms, latency, request.deadline - request.arrived
        )
        self._close(request, ran=True)
        request.payload.answer(answered)
        if self.log is not None:
            version, name = str(answered.spec.version), self._name_of(batch.gpu_let)
            ran = Ran(version, batch.rows, name, batch.gpu_let.sm, batch.started, compute_ms, now)
            self.log.answered(request, ran, self._clock())

    def refuse(self, request: Request, refusal: Refusal) -> None:
        if request.payload.gone:
            self.forget(request)
            return
        served = self._models.get(request.model)
        if served is not None:
            served.statistics.refuse(refusal.reason, self._clock() - request.arrived)
        if self.log is not None:
            version = str(served.spec.version) if served is not None else ""
            self.log.ended(request.payload, refusal.reason, self._clock(), version=version, message=refusal.message)
        self._close(request, ran=False)
        request.payload.answer(refusal)

    def refuse_dropped(self, drop: Drop) -> None:
        """One that the dispatcher has given up."""
        request = drop.request
        if not drop.late:
            rest = self._quarantine.rests(request.model, self._clock())
            self.refuse(request, Refusal("unavailable", drop.reason, retry_s=max(1, ceil(rest / 1000))))
            return
        waited, deadline = self._clock() - request.arrived, request.deadline - request.arrived
        message = f"{drop.reason}: the deadline is {deadline:.4g} ms after arrival, the request waited {waited:.4g} ms"
        if drop.expected is not None:
            message += f", and its batch would take {drop.expected:.4g} ms"
        self.refuse(request, Refusal("deadline", message))

    def forget(self, request: Request) -> None:
        """It has no answer, since nobody waits for one."""
        served = self._models.get(request.model)
        if served is not None:
            served.statistics.refuse("cancelled", self._clock() - request.arrived)
        if self.log is not None:
            self.log.ended(request.payload, "cancelled", self._clock())
        self._close(request, ran=False)

    def _close(self, request: Request, *, ran: bool) -> None:
        self.in_flight -= 1
        if self._quarantine.alone:
            self._quarantine.ended(request.model, id(request.payload), ran=ran)
            self._ended()
