"""The way of a request: checked, queued by dispatcher.py, executed in a batch, answered. One event loop; a request
has no task of its own.

Each call is answered exactly once, with outputs or with a Refusal. A batch goes to an executor's process; batches of
models that do nothing are answered in this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from gemlet.serve.dispatch import batch_tensors, relief
from gemlet.serve.dispatch.answers import Answers
from gemlet.serve.dispatch.call import Refusal, check
from gemlet.serve.dispatch.deaths import Deaths, asked_by
from gemlet.serve.dispatch.dispatcher import Dispatcher, Drop
from gemlet.serve.dispatch.drops import Drops
from gemlet.serve.dispatch.expectation import Expectation
from gemlet.serve.dispatch.faults import Faults
from gemlet.serve.dispatch.quarantine import Quarantine
from gemlet.serve.dispatch.request import Request
from gemlet.serve.dispatch.served import Models
from gemlet.serve.dispatch.soon import Soon
from gemlet.serve.dispatch.waiting_room import WaitingRoom
from gemlet.serve.dispatch.waits import Waits
from gemlet.serve.dispatch.work import Work
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.executor import ExecutorDied
from gemlet.serve.models.specification import ModelError
from gemlet.serve.plan.model import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.gpu_lets import Batch, GpuLetState
    from gemlet.serve.dispatch.request_log import RequestLog
    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.execution.executor import Executor, Result
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)

EXPIRE_S = 0.005  # between looks for requests that waited past their deadline, while any wait
FEW = 1000  # requests, at all of which it costs little to look
SWEEP_S = 5e-6  # for each, before all that wait are looked at: some twenty times as long as that takes
LEAVE_S = 10.0  # that requests for a version which is to go have, to be run before it does
MAX_WAITING = 20_000  # calls of one model
MAX_WAITING_BYTES = 1 << 30  # of all inputs that wait
THROUGHPUT_PRIORITY_OFFSET = 1_000_000  # of models of that class: they go after all others of their gpu-let
EMPTY = Plan(policy="none", device="", origin="", gpus=(), demands=())
IN_PROCESS = -1  # the index of the GPU that stands for this process


def now_ms() -> float:
    return time.monotonic() * 1000


@dataclass(frozen=True, slots=True)
class Route:
    """Where a gpu-let is: its executor, None for this process, and what it is called there."""

    executor: Executor | None
    name: str


class Engine:
    """Models, queues and routes. ``drop`` False serves late rather than never; ``clock`` gives milliseconds."""

    def __init__(self, *, drop: bool = True, clock: Callable[[], float] = now_ms) -> None:
        self.models = Models()
        self.expectation = Expectation()
        self.closing = ""  # why new calls are refused
        self.room = WaitingRoom(MAX_WAITING_BYTES, MAX_WAITING)
        self.waits = Waits()
        self._clock = clock
        self._quarantine = Quarantine()
        self._pump_soon = Soon(self.pump)  # others may have waited for a suspect, however that ended
        self._answers = Answers(self.models, self._quarantine, clock, self._name_of, self._pump_soon)
        self._deaths = Deaths(self._answers, self._quarantine, self.waits, clock)
        self._faults = Faults()
        self._dispatcher = Dispatcher(
            EMPTY, self.expectation, self._max_batch, drop=drop, suspects=self._quarantine, faults=self._faults,
            waits=self.waits,
        )  # fmt: skip
        self._routes: dict[GpuLetState, Route] = {}
        self._arrived: dict[str, int] = {}
        self._ended = asyncio.Event()  # a batch of an earlier plan
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping = False
        self._drops = Drops(self._refuse_dropped)
        self._of_loads: dict[Call, Executor] = {}  # see _refuse_of_loads()
        self._missing: dict[str, str] = {}  # models that could not be loaded again, and why

    @property
    def log(self) -> RequestLog | None:
        """Where each request gets a line; None: nowhere."""
        return self._answers.log

    @log.setter
    def log(self, log: RequestLog | None) -> None:
        self._answers.log = log

    @property
    def in_flight(self) -> int:
        """Requests that were taken and not answered."""
        return self._answers.in_flight

    def infer(self, call: Call) -> None:
        """Takes a call; its answer comes by ``call.answer``, perhaps before this returns."""
        served = self.models.get(call.model)
        if served is None or call.version or served.leaving:
            served = self.models.find(call.model, call.version)
            if served is None:
                self._answers.refuse_call(call, self.models.unknown(call.model, call.version))
                return
        spec, statistics = served.spec, served.statistics
        statistics.arrived += 1
        try:
            if self._quarantine.alone:
                self._check_rest(spec)
            rows = check(spec, call.inputs)
            call.spec = spec
            self._admit(call)
        except Refusal as refusal:
            statistics.refuse(refusal.reason, 0.0)
            self._answers.refuse_call(call, refusal)
            return
        if self._answers.log is not None:
            call.admitted = self._clock()
        label = spec.label
        self._arrived[label] = self._arrived.get(label, 0) + 1
        slo, may_be_late, priority = spec.slo_ms, False, call.priority or spec.priority
        if spec.service_class == "throughput":
            may_be_late, priority = not call.timeout_ms, priority + THROUGHPUT_PRIORITY_OFFSET
        if 0 < call.timeout_ms < slo:
            slo = call.timeout_ms
        self._answers.in_flight += 1
        due = call.arrived + slo
        self._enqueue(
            Request(label, call.arrived, due, call, rows, priority, may_be_late, call.client, asked=call.parent > 0)
        )

    def ask(self, call: Call, executor: Executor) -> None:
        """As infer(), of what a model of this executor asks."""
        if not self._in_service(executor):
            self._of_loads[call] = executor
        self._deaths.asked(call, executor)
        self.infer(call)
        self._refuse_of_loads()

    def heard(self, call: Call) -> None:
        """What a model asked is answered, or not waited for any more."""
        self._of_loads.pop(call, None)
        self.waits.moved(call, "", self._clock())

    def _in_service(self, executor: Executor) -> bool:
        return any(route.executor is executor for route in self._routes.values())

    def _refuse_of_loads(self) -> None:
        """What a model asks while an executor loads it that serves nothing yet does not wait for another one that
        starts again: that one may wait for this one, and for what it asks, in turn."""
        for call, executor in list(self._of_loads.items()):
            served = self.models.of(call.model, call.version)
            places = self._dispatcher.places(served.spec.label) if served is not None else ()
            if self._in_service(executor):
                del self._of_loads[call]
            elif all(place.gpu_let.suspended for place in places):
                for request in self._dispatcher.take_out(lambda each: each.payload is call):  # noqa: B023  at once
                    self._refuse_dropped(Drop(request, f"the executor of {call.model} is being started again"))

    def cancel(self, call: Call) -> None:
        """Its client is gone. It is not run if it still waits, and not answered."""
        call.gone = True
        if not self._sweeping:  # all clients that go until then in one look at the queues
            self._sweeping = True
            most, loop = self.in_flight, asyncio.get_running_loop()  # how many wait, only all queues know
            if most < FEW:
                loop.call_soon(self._sweep)
            else:  # looking takes long, and what starts meanwhile is looked at anyway
                loop.call_later(most * SWEEP_S, self._sweep)

    async def leave(self, specs: Mapping[str, ModelSpec]) -> None:
        """Refuses new requests for what is not in ``specs``, by label, and returns when none of the old ones waits."""
        staying = {(spec.name, spec.version) for spec in specs.values()}
        leaving = {
            label: served
            for label, served in self.models.items()
            if (served.spec.name, served.spec.version) not in staying
        }
        for served in leaving.values():
            served.leaving = served.leaving or ("version" if served.spec.name in specs else "model")
        try:
            async with asyncio.timeout(LEAVE_S):
                while any(self._awaited(label, served) for label, served in leaving.items()):  # noqa: ASYNC110
                    await asyncio.sleep(EXPIRE_S)
        except TimeoutError:
            logger.warning("requests for %s still wait, and are refused", ", ".join(leaving))

    def stay(self) -> None:
        """Nothing leaves after all."""
        for served in self.models.values():
            served.leaving = ""

    def _awaited(self, label: str, served: ServedModel) -> bool:
        """Whether requests wait that only this version can answer, and a gpu-let could still take them."""
        queue = self._dispatcher.queues.get(label)
        if not queue or not self.serves(label):
            return False
        return served.leaving == "model" or any(request.payload.version for request in queue)

    def adopt(
        self, plan: Plan, routes: Callable[[GpuLetState], Route], specs: Mapping[str, ModelSpec] | None = None
    ) -> None:
        """Serves by this plan from now on. ``routes``: where each of its gpu-lets is.

        specs: what is served, by label; None leaves that as it is. A request that names a version waits for that one.
        """
        moved: list[Request] = []
        running = {route: gpu_let for gpu_let, route in self._routes.items() if gpu_let.running is not None}
        if specs is not None:
            before = {label: served.spec.key for label, served in self.models.items()}
            replaced = set(self.models.replace(specs))
            for batch in [batch for gpu_let in running.values() for batch in gpu_let.batches]:
                served = self.models.get(batch.place.model)
                batch.replaced |= served is None or served.spec.key != before.get(batch.place.model)
            for label in replaced:
                self._quarantine.forget(label)
            self._faults.forget(replaced)
            moved = self._dispatcher.take_out(self._elsewhere)
        self._dispatcher.adopt(plan)
        self._missing = {label: why for label, why in self._missing.items() if not self._dispatcher.places(label)}
        self._routes = {gpu_let: route for route, gpu_let in running.items()}
        for gpu_let in self._dispatcher.gpu_lets:
            route = self._routes[gpu_let] = routes(gpu_let)
            gpu_let.host = route.executor
            gpu_let.suspended = route.executor is not None and route.executor.died.is_set()
            if route in running:  # its thread is at work: what came to it would wait for that
                self._dispatcher.carry_on(running[route], gpu_let)
        for request in moved:
            self._leave_room(request)
            self._resubmit(request)
        self.pump()

    def _elsewhere(self, request: Request) -> bool:
        """Whether a request waits in a queue that is not its own any more."""
        call: Call = request.payload
        served = self.models.get(request.model)
        return bool(call.version) and (served is None or str(served.spec.version) != call.version)

    async def settled(self) -> None:
        """Returns when no batch runs any more of a gpu-let of an earlier plan, or of a model that was replaced."""
        while self._old_at_work():
            self._ended.clear()
            await self._ended.wait()

    def _old_at_work(self) -> bool:
        return any(gpu_let.retired or batch.replaced for gpu_let in self._routes for batch in gpu_let.batches)

    def take_away(self, gpu: int, key: str, why: str) -> None:
        """A model, by its key, is not on this device any more, until another plan is adopted."""
        for label, served in self.models.items():
            if served.spec.key == key:
                self._missing[label] = why
                self._dispatcher.take_away(gpu, label, why)
        self._drops.add(self._dispatcher.drops())

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
                gpu_let.host, gpu_let.suspended = executor, False
        self.pump()

    def _sweep(self) -> None:
        """Takes out the requests of clients that are gone."""
        self._sweeping = False
        for request in self._dispatcher.take_out(lambda request: request.payload.gone):
            self._leave_room(request)
            self._answers.forget(request)

    def _look_at_deadlines(self) -> None:
        """Every few milliseconds, as long as anything waits."""
        self._timer = None
        try:
            self.expire()
            if self._of_loads:
                self._refuse_of_loads()
        finally:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._dispatcher.waits():
            self._timer = asyncio.get_running_loop().call_later(EXPIRE_S, self._look_at_deadlines)

    def pump(self) -> None:
        """Starts whatever can start now."""
        for batch in self._dispatcher.start(self._clock()):
            self._execute(batch)
        self._drops.add(self._dispatcher.drops())
        self._relieve()

    def _relieve(self) -> None:
        """Runs what batches wait for that would otherwise wait for each other."""
        while self.waits.total and (found := relief.next_locked(self.waits, self._dispatcher)) is not None:
            request, place = found
            if place is not None:
                self._execute(self._dispatcher.start_beside(request, place, self._clock()))
                continue
            self._dispatcher.take_out(lambda each: each is request)  # noqa: B023  called at once
            chain = " -> ".join((*request.payload.chain, request.model))
            message = f"{request.model} would wait for what waits for it: {chain}"
            self._refuse_dropped(Drop(request, message))

    def expire(self) -> None:
        """Answers what waited past its deadline. The engine looks by itself while anything waits."""
        self._dispatcher.expire(self._clock())
        self._drops.add(self._dispatcher.drops())

    def stuck(self, limit_ms: float) -> set[Executor]:
        """Executors that have been at one batch for longer than that, without what it waited for other models."""
        now = self._clock()
        return {
            route.executor
            for gpu_let, route in self._routes.items()
            for batch in gpu_let.batches
            if route.executor is not None and self.waits.worked(batch, now) > limit_ms
        }

    def abandon(self, message: str) -> None:
        """Refuses all waiting requests."""
        for drop in self._dispatcher.abandon(message):
            self._refuse_dropped(drop)
        self._drops.refuse_all()

    def counts(self) -> Mapping[str, int]:
        """Requests that arrived by model since the last call."""
        counted, self._arrived = self._arrived, {}
        return {name: counted.get(name, 0) for name in self.models}

    def waiting(self, model: str) -> int:
        """Calls in its queue."""
        queue = self._dispatcher.queues.get(model)
        return len(queue) if queue is not None else 0

    def serves(self, model: str) -> bool:
        """Whether requests for a label are run now: the plan in force has a gpu-let for it, and it does not rest."""
        return not self.why_not(model)

    def why_not(self, model: str) -> str:
        """Why requests for a label are not run now; "" if they are."""
        rest = self._quarantine.rests(model, self._clock())
        if rest:
            return self._resting(model, rest)
        places = self._dispatcher.places(model)
        if not places:
            return self._missing.get(model, "no gpu-let serves it")
        if all(place.gpu_let.suspended for place in places):
            return "its executor is being started again"
        return ""

    def pardon(self, model: str) -> None:
        """Somebody loaded it again: executors that died under it count no more."""
        self._quarantine.forget(model)
        self._pump_soon()

    def _resting(self, model: str, rest: float) -> str:
        killed = self._quarantine.strikes(model)
        return f"{model} rests for {rest / 1000:.3g} s: executors died under {killed} of its requests"

    def _check_rest(self, spec: ModelSpec) -> None:
        rest = self._quarantine.rests(spec.label, self._clock())
        if rest:
            raise Refusal("unavailable", self._resting(spec.label, rest), retry_s=ceil(rest / 1000))

    def _admit(self, call: Call) -> None:
        """Finds it room to wait in. Raises Refusal."""
        if self.closing and not call.chain:
            raise Refusal("unavailable", self.closing, retry_s=1)
        call.nbytes = max(call.request_bytes, sum([len(tensor.data) for tensor in call.inputs]))
        assert call.spec is not None
        full = self.room.enter(call.spec.label, call.client, call.nbytes)
        if full:
            raise Refusal("overload", full, retry_s=1)

    def _leave_room(self, request: Request) -> None:
        self.room.leave(request.model, request.client, request.payload.nbytes)

    def _enqueue(self, request: Request) -> None:
        now = self._clock()
        if request.payload.parent:
            self.waits.moved(request.payload, request.model, now)
        self._dispatcher.submit(request)
        # What begins to wait for this is met by suspects, which may be others' and start then.
        model = None if request.payload.parent and self._quarantine.alone else request.model
        for batch in self._dispatcher.start(now, model) if self._dispatcher.serves(request.model) else ():
            self._execute(batch)
        self._drops.add(self._dispatcher.drops())
        self._relieve()
        if self._timer is None and self._dispatcher.waits_for(request.model):  # if others waited, there would be one
            self._arm()

    def _name_of(self, gpu_let: GpuLetState) -> str:
        return self._routes[gpu_let].name if gpu_let in self._routes else ""

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
                self._leave_room(request)
            if served is None:
                for request in batch.requests:
                    self._answers.refuse(request, self.models.unknown(request.payload.model))
            elif not self._answers.fitting(served.spec, batch):
                pass
            elif route.executor is None:
                self._answers.echo(served, batch)
            else:
                if served.spec.by_request:
                    self.waits.began(batch)
                if self.waits.total:
                    for request in batch.requests:
                        self.waits.moved(request.payload, batch.number)
                self._deaths.began(batch, route.executor)
                self._send(Work(batch, served, route.executor, route.name))
                continue
            following += self._dispatcher.finish(batch, self._clock(), whole=False)

    def _send(self, work: Work) -> None:
        batch, spec = work.batch, work.served.spec
        parts, work.later = batch_tensors.parts(spec, batch.requests)
        work.parts = len(parts) + len(work.later)
        for requests in parts:
            self._run(work, spec, requests)

    def _run(self, work: Work, spec: ModelSpec, requests: list[Request]) -> None:
        rows = sum([each.rows for each in requests])
        joined, infos = batch_tensors.joined(spec, requests), batch_tensors.infos(requests) if spec.by_request else ()
        future = work.executor.run(work.gpu_let, spec.key, joined, rows, infos, nesting=work.nesting(spec))
        future.add_done_callback(partial(self._came_back, work, spec, requests))

    def _came_back(self, work: Work, spec: ModelSpec, requests: list[Request], future: asyncio.Future[Result]) -> None:
        batch, now, held_back = work.batch, self._clock(), bool(self._quarantine.alone)  # others may wait for this
        error = future.exception()
        whole = error is None and len(requests) == len(batch.requests) and not batch.replaced
        try:
            error = error or self._answered(work, spec, requests, future.result())
            if error is not None:
                self._failed(work, requests, error)
        except Exception:
            logger.exception("answers of %s failed", spec.label)
        if work.later:
            self._run(work, spec, work.later.pop())
        work.parts -= 1  # whatever became of the answers: the gpu-let has done its work
        if work.parts == 0:
            self.waits.ended(batch)
            for following in self._dispatcher.finish(batch, now, whole=whole):
                self._execute(following)
            if batch.gpu_let.retired or batch.replaced:
                self._ended.set()
        if error is not None or held_back:
            self.pump()  # a batch that must run again, or alone, may find another gpu-let free
        self._relieve()
        self._drops.add(self._dispatcher.drops())

    def _answered(self, work: Work, spec: ModelSpec, requests: list[Request], result: Result) -> ModelError | None:
        """Answers the requests of a part of a batch, or says why what the model gave is no answer."""
        work.served.statistics.ran(sum([request.rows for request in requests]), result.ms)
        try:
            self._answers.answer_all(work.served, spec, work.batch, requests, result)
        except ModelError as error:
            return error
        return None

    def _failed(self, work: Work, requests: list[Request], error: BaseException) -> None:
        """Has the requests of a part of a batch run again, or refuses them."""
        if isinstance(error, ModelError) and len(requests) > 1 and not self.closing:
            for request in requests:  # one of them is bad, perhaps: it fails by itself, and the others do not
                request.together = (len(requests) + 1) // 2
                request.may_be_late = True  # late because of others
                self._resubmit(request)
        else:
            if isinstance(error, ExecutorDied):
                self._died(work.executor)
            self._went_wrong(work, requests, error)

    def _died(self, executor: Executor) -> None:
        if self._deaths.noticed(executor, lambda: self._running(executor)):
            for request in self._dispatcher.take_out(lambda request: asked_by(executor, request.payload)):
                self._leave_room(request)
                self._deaths.orphaned(request)
        self.suspend(executor)

    def _running(self, executor: Executor) -> list[Batch]:
        on_it = [gpu_let for gpu_let, route in self._routes.items() if route.executor is executor]
        return [batch for gpu_let in on_it for batch in gpu_let.batches]

    def _went_wrong(self, work: Work, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            if isinstance(error, GpuLetGone | ExecutorDied):
                if self.closing:
                    self._answers.refuse(request, Refusal("unavailable", self.closing, retry_s=1))
                elif isinstance(error, ExecutorDied) and asked_by(work.executor, request.payload):
                    if len(requests) > 1:
                        self._quarantine.unclear(request.model)
                    self._deaths.orphaned(request)
                elif isinstance(error, GpuLetGone):
                    work.batch.gpu_let.suspended = True  # for this plan and executor: it would be back at once
                    self._again(request)
                else:
                    self._died_under(request, work)
            elif isinstance(error, ModelError):
                if work.served.spec.max_batch > 1 and len(requests) == 1:  # else nothing shares batches with it
                    self._faults.failed(request.model, request.client, self._clock())
                self._answers.refuse(request, Refusal("failed", error.message))
            else:
                logger.error("a batch of %s failed: %s", work.served.spec.name, error, exc_info=error)
                self._answers.refuse(request, Refusal("failed", f"{type(error).__name__}: {error}"))

    def _died_under(self, request: Request, work: Work) -> None:
        """An executor died, perhaps of this request."""
        refusal = self._deaths.under(request, work.batch, work.executor)
        if refusal is None:
            self._again(request)
            return
        self._answers.refuse(request, refusal)
        rest = self._quarantine.rests(request.model, self._clock())
        if rest:
            logger.error("%s", self._resting(request.model, rest))
            self._dispatcher.give_up(request.model, self._resting(request.model, rest))

    def _again(self, request: Request) -> None:
        """Puts a request whose executor is gone back into its queue."""
        served = self.models.get(request.model)
        if served is not None:
            served.statistics.retried += 1
        self._resubmit(request)

    def _resubmit(self, request: Request) -> None:
        """Puts a request into the queue that it belongs to by now."""
        call: Call = request.payload
        if call.gone:
            self._answers.forget(request)
            return
        served = self.models.of(call.model, call.version)
        if served is None:
            self._answers.refuse(request, self.models.unknown(call.model, call.version))
            return
        request.model = served.spec.label
        self.room.enter(request.model, call.client, call.nbytes, again=True)
        self.waits.moved(call, request.model)
        self._dispatcher.submit(request)
        self._arm()

    def _refuse_dropped(self, drop: Drop) -> None:
        self._leave_room(drop.request)
        self._answers.refuse_dropped(drop)
