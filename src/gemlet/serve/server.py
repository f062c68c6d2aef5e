"""`gemlet serve`: repository, engine, executors, frontends and controller put together, from start to drained end."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.errors import GemletError, UsageError
from gemlet.serve import choice, files, initial_plan, planner
from gemlet.serve.call import Refusal
from gemlet.serve.catalog import Catalog, Known
from gemlet.serve.control.controller import Controller
from gemlet.serve.control.planning import PlanningProcess
from gemlet.serve.control.settings import Settings
from gemlet.serve.engine import Engine
from gemlet.serve.execution import ray_placement
from gemlet.serve.execution.backend import BackendOptions, ModelSpec
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import ARENA_BYTES, STOP_SECONDS
from gemlet.serve.fleet import Fleet
from gemlet.serve.frontend.grpc_server import GrpcServer
from gemlet.serve.frontend.http_server import HttpServer
from gemlet.serve.frontend.regions import Regions
from gemlet.serve.profiles import render as render_profiles
from gemlet.serve.scaling import DeviceScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from gemlet.serve.demand_file import Service as DemandedService
    from gemlet.serve.execution.executor import Executor
    from gemlet.serve.frontend.logs import LogTail
    from gemlet.serve.planner.model import Demand, Plan
    from gemlet.serve.profiles import Profiles

logger = logging.getLogger(__name__)

EXPIRE_S = 0.005  # between looks for requests that waited past their deadline
SLOW_CHECK_S = 5.0
HANG_CHECK_S = 0.5
WATCH_S = 1.0
FLUSH_S = 2.0  # for the last answers on their way out


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to serve. Ports: 0 = any, None = not at all. ``drain_s``: seconds that requests have to end at SIGTERM.

    ``ray``: address of the Ray cluster that executors are placed in; None: they run beside the server.
    ``scale``: least and most devices in use; executors of the others are ended. None: all stay.
    hang_s: an executor that is at one batch for so long is killed and started again.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    executor: choice.Wanted = "auto"
    devices: tuple[int, ...] | None = None
    profiles: Path | None = None
    plan: Path | None = None
    demand: Path | None = None
    replan: bool = True
    watch: bool = False
    drop: bool = True
    shared_memory: bool = True
    drain_s: float = 10.0
    hang_s: float = 120.0
    arena_bytes: int = ARENA_BYTES
    ray: str | None = None
    scale: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """What a server that is ready tells. ``replanning``: the controller follows the load."""

    choice: choice.Choice
    note: str
    models: tuple[ModelSpec, ...]
    plan: Plan
    http_port: int | None
    grpc_port: int | None
    replanning: bool
    profiles: str


class Server:
    """See service.py for what frontends ask of it."""

    def __init__(self, options: Options, logs: LogTail) -> None:
        self.engine = Engine(drop=options.drop)
        self.regions = Regions(allowed=options.shared_memory)
        self.logs = logs
        self._options = options
        self._catalog = Catalog(options.repository, self.engine, self._rearrange)
        self._cluster = ray_placement.Cluster(options.ray) if options.ray is not None else None
        self._choice = (
            choice.choose(options.executor, options.devices)
            if self._cluster is None
            else choice.placed(options.executor, options.devices, self._cluster)
        )
        self._known = self._read_profiles()
        self._demanded = files.load_service(options.demand) if options.demand else None
        self._fleet = Fleet(self.engine, ())
        self._controller: Controller | None = None
        self._planning: PlanningProcess | None = None

    async def run(self, stop: asyncio.Event, started: Callable[[Started], None]) -> None:
        """Serves until ``stop`` is set; then refuses what is new and ends what is there. Raises GemletError."""
        try:
            async with AsyncExitStack() as ends, asyncio.TaskGroup() as tasks:
                background: list[asyncio.Task[None]] = []
                try:
                    await self._serve(stop, started, tasks, background, ends)
                finally:
                    for task in background:
                        task.cancel()
                    await self._fleet.close()
                    if self._cluster is not None:
                        self._cluster.close()
        except* GemletError as group:
            raise _first(group) from None

    # What frontends ask

    @property
    def ready(self) -> bool:
        return not self.engine.closing and all(
            known.state == "READY" or known.reason == "unloaded" for known in self._catalog.models.values()
        )

    def model(self, name: str, version: str = "") -> ModelSpec:
        served = self.engine.models.get(name)
        if served is None:
            known = self._catalog.models.get(name)
            raise Refusal("unknown", f"model {name!r} is {known.reason}" if known else f"there is no model {name!r}")
        if version and version != str(served.spec.version):
            raise Refusal("unknown", f"{name} is served in version {served.spec.version}, not {version}")
        return served.spec

    def model_ready(self, name: str, version: str = "") -> bool:
        self.model(name, version)
        return not self.engine.closing and self.engine.serves(name)

    def index(self) -> Sequence[Known]:
        return list(self._catalog.models.values())

    async def load(self, name: str) -> None:
        await self._catalog.load(name)

    async def unload(self, name: str) -> None:
        await self._catalog.unload(name)

    def plan(self) -> Plan:
        return self._fleet.plan()

    def runs_on(self) -> Mapping[str, str]:
        slower = [line for device in self._fleet.all_devices for line in device.slower]
        return {
            "executor": self._choice.backend,
            "devices": ",".join(map(str, self._choice.devices)),
            "note": self._note(),
            "profiles": self._known.origin if self._known is not None else "none",
        } | ({"slower": "; ".join(slower)} if slower else {})

    def restarts(self) -> Mapping[int, int]:
        return {device.index: device.restarts for device in self._fleet.all_devices}

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

        _allow_connections()
        self.logs.attach(asyncio.get_running_loop())
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        self._catalog.read()
        self._fleet = Fleet(self.engine, [self._device(index, tasks) for index in self._choice.devices])
        for device in self._fleet.all_devices:
            await device.start()
        self._tell_expectation()
        await self._fleet.apply(self._first_plan())
        self._catalog.all_ready()
        http, http_port = await self._listen_http()
        grpc, grpc_port = await self._listen_grpc()
        keep(_every(EXPIRE_S, self.engine.expire), "deadlines")
        if http is not None:
            keep(_every(SLOW_CHECK_S, http.close_slow), "slow connections")
        keep(_every(HANG_CHECK_S, self._kill_stuck), "executors that hang")
        if self._options.watch:
            keep(self._watch(), "repository")
        self._control(keep, ends, tasks)
        gc.collect()
        gc.freeze()  # what is there by now stays: collections look at what comes with requests only
        started(self._started(http_port, grpc_port))
        await stop.wait()
        for task in background[1:]:  # deadlines are kept to the end
            task.cancel()
        await self._drain(http, grpc)

    async def _drain(self, http: HttpServer | None, grpc: GrpcServer | None) -> None:
        logger.info("ending: %d requests have %g s", self.engine.in_flight, self._options.drain_s)
        self.engine.closing = "the server is ending"
        self.logs.end_followers()
        if http is not None:
            http.drain()
        try:
            async with asyncio.timeout(self._options.drain_s):
                while self.engine.in_flight:  # noqa: ASYNC110  once in a life, and the count is kept anyway
                    await asyncio.sleep(EXPIRE_S)
        except TimeoutError:
            logger.warning("%d requests are refused, their time is over", self.engine.in_flight)
            self.engine.abandon("the server is ending")
        await self._fleet.close(0.0 if self.engine.in_flight else STOP_SECONDS)  # what still runs is refused with this
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(FLUSH_S):
                if grpc is not None:
                    await grpc.close()
                while http is not None and http.connections:
                    http.close_idle()
                    await asyncio.sleep(EXPIRE_S)
        except TimeoutError:
            logger.warning("some clients do not read their answers")
        if http is not None:
            await http.close()

    def _device(self, index: int, tasks: asyncio.TaskGroup) -> Device:
        known = render_profiles(self._known) if self._known is not None else ""
        return Device(
            index,
            self._choice.backend,
            BackendOptions(device=index if self._cluster is None else 0, profiles=known),  # Ray shows it one only
            tasks,
            on_died=self._died,
            on_back=self.engine.resume,
            arena_bytes=self._options.arena_bytes,
            placement=self._cluster.placement(self._choice.backend) if self._cluster is not None else None,
        )

    def _died(self, executor: Executor) -> None:
        self.engine.suspend(executor)
        if self._controller is not None:
            self._controller.look()

    def _kill_stuck(self) -> None:
        for executor in self.engine.stuck(1000 * self._options.hang_s):
            logger.error("%s is killed: at one batch for more than %g s", executor.name, self._options.hang_s)
            executor.kill()

    async def _listen_http(self) -> tuple[HttpServer | None, int | None]:
        if self._options.http_port is None:
            return None, None
        server = HttpServer(self)
        try:
            return server, await server.listen(self._options.host, self._options.http_port)
        except OSError as error:
            raise _cannot_listen("HTTP", "--http-port", self._options.host, self._options.http_port, error) from None

    async def _listen_grpc(self) -> tuple[GrpcServer | None, int | None]:
        if self._options.grpc_port is None:
            return None, None
        server = GrpcServer(self)
        try:
            return server, await server.listen(self._options.host, self._options.grpc_port)
        except OSError as error:
            raise _cannot_listen("gRPC", "--grpc-port", self._options.host, self._options.grpc_port, error) from None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._catalog.compare()
            except Exception:  # one look that failed is no reason to end all requests
                logger.exception("a look at the repository failed")

    # Plans

    def _specs(self) -> list[ModelSpec]:
        return [served.spec for served in self.engine.models.values()]

    def _read_profiles(self) -> Profiles | None:
        """Those of the command line or the demand file; else the modelled ones, where time is modelled anyway."""
        named = self._options.profiles
        if named is None and self._options.demand is not None:
            service = files.load_service(self._options.demand)
            named = self._options.demand.parent / service.profiles if service.profiles else None
        if named is None and self._choice.backend in choice.ON_GPU:
            return None
        return files.load_profiles(named)

    def _of_models(self) -> Profiles | None:
        return choice.profiles_of(self._specs(), self._known, self._choice.backend)

    def _tell_expectation(self) -> None:
        known = self._of_models()
        for spec in self._specs():
            self.engine.expectation.know(spec.name, known.models.get(spec.name) if known is not None else None)

    def _first_plan(self) -> Plan:
        if self._options.plan is None:
            return self._make_plan()
        known = self._of_models() or files.load_profiles(None)
        demands = self._demanded.demands if self._demanded is not None else ()
        plan = files.load_plan(self._options.plan, known, demands)
        placed = {task.model for task in plan.tasks()}
        missing = [spec.name for spec in self._specs() if spec.platform != "noop" and spec.name not in placed]
        strange = sorted({gpu.index for gpu in plan.gpus} - set(self._choice.devices))
        if missing:
            hint = "plan again with them, or take them out of the repository"
            raise UsageError(f"{self._options.plan} has no place for {', '.join(missing)}", hint=hint)
        if strange:
            hint = f"serve on more devices: --devices {','.join(str(gpu.index) for gpu in plan.gpus)}"
            raise UsageError(f"{self._options.plan} is for GPU {strange[0]}, which does not serve here", hint=hint)
        return plan

    def _make_plan(self, demands: Sequence[Demand] | None = None) -> Plan:
        """For these demands, and what is left for models without one; None: for those of the demand file alone."""
        demanded: DemandedService | None = self._demanded
        alive = [device.index for device in self._fleet.devices()] or list(self._choice.devices)
        return initial_plan.make(
            self._specs(),
            self._of_models(),
            alive,
            demands=self._known_demands() if demands is None else demands,
            fill=demands is not None,
            options=msgspec.structs.replace(
                demanded.options if demanded is not None else planner.Options(),
                executor="mps" if self._choice.backend == "mps" else "green",
            ),
            policy=demanded.policy if demanded is not None else "nway+type",
            apart=self._choice.backend not in choice.ON_GPU,
        )

    def _known_demands(self) -> list[Demand]:
        """As the controller sees them, or as the demand file has them."""
        if self._controller is not None:
            demands = self._controller.decider.demands
        else:
            demands = self._demanded.demands if self._demanded is not None else ()
        return [demand for demand in demands if demand.model in self.engine.models]

    async def _rearrange(self, changed: str) -> None:
        """A plan for the models of now, one of which was loaded, changed or unloaded."""
        known = self._of_models()
        profile = known.models.get(changed) if known is not None else None
        self.engine.expectation.know(changed, profile)
        demands = self._known_demands()
        if changed in self.engine.models:
            slo_ms = self.engine.models[changed].spec.slo_ms
            demands = [
                msgspec.structs.replace(demand, slo_ms=slo_ms) if demand.model == changed else demand
                for demand in demands
            ]
        async with self._controller.applying if self._controller is not None else nullcontext():
            plan = await asyncio.to_thread(self._make_plan, demands)  # many milliseconds: requests go on meanwhile
            await self._fleet.apply(plan)
            if self._controller is not None:
                self._tell(self._controller, plan, changed)

    def _tell(self, controller: Controller, plan: Plan, changed: str) -> None:
        """That this plan is in force. It plans for the models that there are, as long as all have profiles."""
        decider, known = controller.decider, self._of_models()
        planned = {demand.model for demand in decider.demands}
        for model in planned & ({changed} | (planned - self.engine.models.keys())):
            decider.forget(model)
        for demand in plan.demands:
            if demand.model == changed or demand.model not in planned:
                decider.demand(demand)
        controller.paused = known is None or not initial_plan.planned_by_profiles(self._specs(), known)
        if known is not None and self._planning is not None:
            self._planning.know(known)
        decider.started_with(plan, asyncio.get_running_loop().time())

    def _control(
        self, keep: Callable[[Coroutine[Any, Any, None], str], None], ends: AsyncExitStack, tasks: asyncio.TaskGroup
    ) -> None:
        """Starts the controller, if it is wanted and has profiles to plan with."""
        known = self._of_models()
        if not self._options.replan or known is None or not initial_plan.planned_by_profiles(self._specs(), known):
            return
        plan = self._fleet.plan()
        demands = plan.demands or initial_plan.demands_of(self._specs(), known, initial_plan.FACTORS[-1])
        self._planning = ends.enter_context(PlanningProcess(known))
        self._controller = Controller(
            self._fleet,
            known,
            demands,
            self._settings(),
            ask=self._planning,
            waiting=self._waiting,
            scaler=DeviceScaler(self._fleet, tasks) if self._options.scale is not None else None,
            say=lambda change: logger.info("plan: %s", change),
        )
        keep(self._controller.run(), "controller")

    def _settings(self) -> Settings:
        least, most = self._options.scale or (1, None)
        if self._demanded is None:
            return Settings(least=least, most=most)
        return Settings(least=least, most=most, policy=self._demanded.policy, planner=self._demanded.options)

    def _waiting(self) -> Mapping[str, int]:
        return {name: self.engine.waiting(name) for name in self.engine.models}

    # Words

    def _note(self) -> str:
        return next((device.note for device in self._fleet.all_devices if device.note), "")

    def _started(self, http_port: int | None, grpc_port: int | None) -> Started:
        return Started(
            self._choice,
            self._note(),
            tuple(self._specs()),
            self._fleet.plan(),
            http_port,
            grpc_port,
            self._controller is not None,
            f"{self._known.origin}: {self._known.note}" if self._known is not None else "none",
        )


async def _every(seconds: float, act: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            act()
        except Exception:  # one look that failed is no reason to end all requests
            logger.exception("a periodic look failed")


def _allow_connections() -> None:
    """A connection is an open file: as many as the machine's administrator allows, not the usual 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of a callback; the server goes on."""
    logger.error("%s", context.get("message"), exc_info=context.get("exception"))


def _cannot_listen(what: str, option: str, host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        hint = f"{option} 0 takes any free port; `ss -ltnp 'sport = :{port}'` says who has this one"
        return UsageError(f"{what} port {port} is in use on {host}", hint=hint)
    hint = f"{option} above 1023 needs no rights; --host 0.0.0.0 means every address of this machine"
    return UsageError(f"{what} cannot listen on {host}:{port}: {error.strerror or error}", hint=hint)


def _first(group: BaseExceptionGroup[GemletError]) -> GemletError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
