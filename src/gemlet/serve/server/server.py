"""`gemlet serve`: repository, engine, executors, frontends and controller put together, from start to drained end."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet import own_memory
from gemlet.accounts import count_users_by
from gemlet.daemon.subordinate_uids import SubordinateUids
from gemlet.errors import GemletError
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.engine import Engine
from gemlet.serve.dispatch.nested import Nested
from gemlet.serve.dispatch.request_log import WRITE_S, RequestLog
from gemlet.serve.dispatch.served import UNKNOWN
from gemlet.serve.execution import ray_placement
from gemlet.serve.execution.backend import BackendOptions
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import STOP_SECONDS
from gemlet.serve.execution.process_settings import SWITCH_INTERVAL
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.profile import render as render_profiles
from gemlet.serve.server import serving_plan, traces
from gemlet.serve.server.catalog import Catalog, Known
from gemlet.serve.server.fleet import Fleet
from gemlet.serve.server.frontend.regions import Regions
from gemlet.serve.server.frontend.shared_text import SharedTexts
from gemlet.serve.server.frontend.unpacking import Unpacking
from gemlet.serve.server.garbage import LOOK_S, Garbage
from gemlet.serve.server.listening import Listening
from gemlet.serve.server.serving_plan import ServingPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from gemlet.serve.execution.executor import Executor
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.plan.model import Plan
    from gemlet.serve.server import backend_choice
    from gemlet.serve.server.frontend import connections
    from gemlet.serve.server.frontend.logs import LogTail
    from gemlet.serve.server.frontend.service import Service
    from gemlet.serve.server.options import ServerOptions

logger = logging.getLogger(__name__)

DRAIN_CHECK_S = 0.005
USERS_S = 2.0  # for the owners of subordinate uids to be found, at the begin
SLOW_CHECK_S = 1.0
HANG_CHECK_S = 0.5
TRIM_S = 10.0
WATCH_S = 1.0
LEARN_S = 5.0
FLUSH_S = 2.0  # for the last answers on their way out


@dataclass(frozen=True, slots=True)
class Started:
    """What a server that is ready tells. ``replanning``: the controller follows the load."""

    choice: backend_choice.Choice
    note: str
    models: tuple[ModelSpec, ...]
    plan: Plan
    http_port: int | None
    grpc_port: int | None
    replanning: bool
    profiles: str


class Server:
    """See service.py for what frontends ask of it."""

    def __init__(self, options: ServerOptions, logs: LogTail) -> None:
        self.engine = Engine(drop=options.drop)
        self._nested = Nested(self.engine)
        self._completing: set[asyncio.Task[None]] = set()
        self._end_traces: Callable[[], None] | None = None
        export = None
        if options.traces:
            export, self._end_traces = traces.exporter()
        if options.request_log is not None or export is not None:
            self.engine.log = RequestLog(options.request_log, export)
        self.regions = Regions(allowed=options.shared_memory, read_bytes=options.limits.request_bytes)
        self.unpacking = Unpacking()
        self.logs = logs
        self.texts: SharedTexts[Service] = SharedTexts(self)
        self._options = options
        _allow_connections()
        # Threads plan and read models' files for seconds: with Python's 5 ms the event loop waits that long each time.
        sys.setswitchinterval(SWITCH_INTERVAL)
        own_memory.give_back()
        self._listening = Listening(options, self)
        self._subordinates = SubordinateUids(shared=True)
        self._cluster = ray_placement.Cluster(options.ray) if options.ray is not None else None
        self._choice, known = serving_plan.choose(options, self._cluster)
        self._serving_plan = ServingPlan(options, self._choice, self.engine, known)
        self._catalog = Catalog(options.repository, self.engine, self._serving_plan.replan)

    async def run(self, stop: asyncio.Event, started: Callable[[Started], None]) -> None:
        """Serves until ``stop`` is set; then refuses what is new and ends what is there. Raises GemletError."""
        try:
            async with AsyncExitStack() as ends, asyncio.TaskGroup() as tasks:
                background: list[asyncio.Task[None]] = []
                try:
                    await self._serve(stop, started, tasks, background, ends)
                finally:
                    self._catalog.close()
                    for task in (*background, *self._completing):
                        task.cancel()
                    await self._fleet.close()
                    self.unpacking.close()
                    await self.regions.close()
                    if self.engine.log is not None:
                        await self.engine.log.write()
                    if self._end_traces is not None:
                        await asyncio.to_thread(self._end_traces)
                    if self._cluster is not None:
                        self._cluster.close()
        except* GemletError as group:
            raise _first(group) from None

    # What frontends ask

    @property
    def ready(self) -> bool:
        labels = list(self.engine.models)
        return not self.engine.closing and (not labels or any(self.engine.serves(label) for label in labels))

    def model(self, name: str, version: str = "") -> ModelSpec:
        served = self.engine.models.find(name, version)
        if served is not None:
            return served.spec
        there = self.engine.models.versions(name)
        if there:
            raise self.engine.models.unknown(name, version)
        why = self._catalog.why_not(name)
        told = f"model {name!r} is not served: {why}" if why else f"there is no model {name!r}"
        raise Refusal("unknown", f"{UNKNOWN}{told}")

    def model_ready(self, name: str, version: str = "") -> bool:
        return not self.engine.closing and self.engine.serves(self.model(name, version).label)

    def index(self) -> Sequence[Known]:
        return self._catalog.index()

    async def load(self, name: str, peer: str) -> None:
        await self._catalog.load(name, peer=peer)

    async def unload(self, name: str, peer: str) -> None:
        await self._catalog.unload(name, peer=peer)

    def plan(self) -> Plan:
        return self._fleet.plan()

    def runs_on(self) -> Mapping[str, str]:
        slower = [line for device in self._fleet.all_devices for line in device.slower]
        return {
            "executor": self._choice.backend,
            "devices": ",".join(map(str, self._choice.devices)),
            "note": self._note(),
            **self._kinds(),
            **self._serving_plan.basis(),
        } | ({"slower": "; ".join(slower)} if slower else {})

    def _kinds(self) -> dict[str, str]:
        known = self._serving_plan.known
        if not isinstance(known, kinds.ProfilesByKind):
            return {}
        return {"kinds": ", ".join(f"{index} {known.devices[index]}" for index in self._choice.devices)}

    def restarts(self) -> Mapping[int, int]:
        return {device.index: device.restarts for device in self._fleet.all_devices}

    @property
    def _fleet(self) -> Fleet:
        return self._serving_plan.fleet

    # Start and end

    async def _serve(
        self,
        stop: asyncio.Event,
        started: Callable[[Started], None],
        tasks: asyncio.TaskGroup,
        background: list[asyncio.Task[None]],
        ends: AsyncExitStack,
    ) -> None:
        def keep(work: Coroutine[Any, Any, None], name: str) -> None:
            background.append(tasks.create_task(work, name=name))

        self.logs.attach(asyncio.get_running_loop())
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        if not await _unless(stop, self._load_first(tasks)):
            logger.info("ending before it has started")
            return
        self._serving_plan.control(keep, ends, tasks)
        self.unpacking.prepare()
        self._catalog.all_ready()
        await self._subordinates.learn(USERS_S)
        count_users_by(self._subordinates.account)
        http, http_port = await self._listening.http()
        grpc, grpc_port = await self._listening.grpc()
        keep(_every(TRIM_S, own_memory.trim), "memory")
        keep(self.unpacking.warm(), "processes for large requests")
        keep(_every(SLOW_CHECK_S, self._listening.refresh), "tokens and certificate")
        keep(_every(SLOW_CHECK_S, self._subordinates.learn), "subordinate uids")
        frontends = [each for each in (http, grpc) if each is not None]
        for frontend in frontends:
            keep(_every(SLOW_CHECK_S, frontend.close_slow), "slow connections")
        if self.engine.log is not None:
            keep(_every(WRITE_S, self.engine.log.write), "request log")
        keep(_every(HANG_CHECK_S, self._kill_stuck), "executors that hang")
        if self._options.watch:
            keep(_every(WATCH_S, self._catalog.compare), "repository")
        keep(_every(LEARN_S, self._serving_plan.learn), "learning")
        keep(_every(LOOK_S, Garbage().look), "garbage")
        started(self._started(http_port, grpc_port))
        await stop.wait()
        for task in (*background, *self._completing):
            task.cancel()
        await self._drain(frontends)

    async def _load_first(self, tasks: asyncio.TaskGroup) -> None:
        await asyncio.to_thread(self._catalog.read)  # which may ask models
        self._serving_plan.fleet = Fleet(self.engine, [self._device(index, tasks) for index in self._choice.devices])
        for device in self._fleet.all_devices:
            await device.start()
        self._serving_plan.tell_expectation()
        await self._fleet.apply(self._serving_plan.first_plan())

    async def _drain(self, frontends: Sequence[connections.Server]) -> None:
        logger.info("ending: requests left: %d, for %g s at most", self.engine.in_flight, self._options.drain_s)
        self.engine.closing = "the server is ending"
        self._catalog.close()
        self.logs.end_followers()
        for frontend in frontends:
            frontend.drain()
        try:
            async with asyncio.timeout(self._options.drain_s):
                while self.engine.in_flight:  # noqa: ASYNC110  once in a life, and the count is kept anyway
                    await asyncio.sleep(DRAIN_CHECK_S)
        except TimeoutError:
            logger.warning("the time to drain is over; requests refused: %d", self.engine.in_flight)
            self.engine.abandon("the server is ending")
        await self._fleet.close(0.0 if self.engine.in_flight else STOP_SECONDS)  # what still runs is refused with this
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(FLUSH_S):
                while any(frontend.connections for frontend in frontends):
                    self.logs.end_followers()  # those who have come meanwhile
                    for frontend in frontends:
                        frontend.close_idle()
                    await asyncio.sleep(DRAIN_CHECK_S)
        except TimeoutError:
            logger.warning("some clients do not read their answers")
        for frontend in frontends:
            await frontend.close()

    def _device(self, index: int, tasks: asyncio.TaskGroup) -> Device:
        known = self._serving_plan.known
        profiles = render_profiles(kinds.on(known, index)) if known is not None else ""

        def back(again: Executor, instead_of: Executor) -> None:
            self.engine.resume(again, instead_of)
            task = tasks.create_task(self._complete(device), name=f"device {index}: models that were left out")
            self._completing.add(task)
            task.add_done_callback(self._completing.discard)

        device = Device(
            index,
            self._choice.backend,
            BackendOptions(device=index if self._cluster is None else 0, profiles=profiles),  # Ray shows it one only
            tasks,
            on_died=self._died,
            on_back=back,
            on_missing=self.engine.take_away,
            on_ask=self._nested,
            arena_bytes=self._options.arena_bytes,
            placement=self._cluster.placement(self._choice.backend) if self._cluster is not None else None,
        )
        return device

    async def _complete(self, device: Device) -> None:
        try:
            await self._fleet.complete(device)
            await self._serving_plan.use_again(device.index)
        except GemletError as error:
            logger.error("device %d is back, and the plan is as it was: %s", device.index, error)
        except Exception:  # the others are served on
            logger.exception("device %d stays without some of its models", device.index)

    def _died(self, executor: Executor) -> None:
        self.engine.suspend(executor)
        if self._serving_plan.controller is not None:
            self._serving_plan.controller.look()

    def _kill_stuck(self) -> None:
        for executor in self.engine.stuck(1000 * self._options.hang_s):
            logger.error("%s is killed: at one batch for more than %g s", executor.name, self._options.hang_s)
            executor.kill()

    # Words

    def _note(self) -> str:
        return next((device.note for device in self._fleet.all_devices if device.note), "")

    def _started(self, http_port: int | None, grpc_port: int | None) -> Started:
        there = kinds.by_kind(self._serving_plan.known).items()
        return Started(
            self._choice,
            self._note(),
            tuple(self._serving_plan.specs()),
            self._fleet.plan(),
            http_port,
            grpc_port,
            self._serving_plan.controller is not None,
            "; ".join(f"{kind}{', ' if kind else ''}{each.origin}: {each.note}" for kind, each in there) or "none",
        )


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether ``work`` was done before ``stop`` was set; it is cancelled otherwise. Raises what it raises."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait((working, stopping))


async def _every(seconds: float, act: Callable[[], Awaitable[None] | None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            work = act()
            if work is not None:
                await work
        except Exception:  # a failed look must not end all requests
            logger.exception("%s failed, and goes on", act.__qualname__)


def _allow_connections() -> None:
    """A connection is an open file: as many as the machine's administrator allows, not the usual 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of a callback; the server goes on."""
    logger.error("%s", context.get("message"), exc_info=context.get("exception"))


def _first(group: BaseExceptionGroup[GemletError]) -> GemletError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
