"""A device and its executors: one process for all of it, or one for each gpu-let (MPS); started again if it dies.

Models are known by their keys. One that cannot be loaded again with an executor is left out, and the others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gemlet.config.quantities import exact_percent
from gemlet.errors import GemletError
from gemlet.membership import PERCENTAGE
from gemlet.serve.execution.executor import ARENA_BYTES, STOP_SECONDS, Executor, ExecutorDied, ExecutorFailed
from gemlet.serve.execution.remote import RemoteExecutor
from gemlet.serve.models.specification import DiedLoading, ModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gemlet.serve.execution.backend import BackendOptions, GpuLet
    from gemlet.serve.execution.executor import Asked
    from gemlet.serve.execution.remote import Placement
    from gemlet.serve.models.specification import ModelSpec

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)

PER_GPU_LET = frozenset({"mps"})  # backends whose share of the SMs is fixed when the process starts
WHOLE = ""  # the key of the one executor of a device
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0
STEADY_S = 30.0  # an executor that lived this long did not die of its arguments
LOAD_SECONDS = 1800.0  # for a model; large ones come over slow networks
UNLOAD_SECONDS = 30.0
PARTITION_SECONDS = 600.0  # the CUDA graphs of all batch sizes are captured in that
ANSWER_SECONDS = 60.0  # for an executor to answer that is not at work
BACK_SECONDS = 30.0  # for which a model that is new waits for an executor that is being started again
BACK_CHECK_S = 0.05
LOAD_DEATHS = 2  # of executors that start again, while they load a model; after that they start without it


class Device:
    """``on_died`` is called at once; ``on_back`` gets the executor that replaced the dead one.

    on_ask: called with what a model asks of another one, and the executor that waits for a reply.
    on_missing: called before ``on_back``, with the index of the device, a model that it cannot load again, and why.
    """

    def __init__(
        self,
        index: int,
        backend: str,
        options: BackendOptions,
        tasks: asyncio.TaskGroup,
        *,
        on_died: Callable[[Executor], None],
        on_back: Callable[[Executor, Executor], None],
        on_missing: Callable[[int, str, str], None] | None = None,
        arena_bytes: int = ARENA_BYTES,
        placement: Placement | None = None,
        on_ask: Asked | None = None,
    ) -> None:
        self.index = index
        self.backend = backend
        self.note = ""
        self.restarts = 0
        self.parked = False
        self.models: dict[str, ModelSpec] = {}
        self.memory: dict[str, int] = {}
        self.gpu_lets: tuple[GpuLet, ...] = ()
        self._options = options
        self._tasks = tasks
        self._on_died = on_died
        self._on_back = on_back
        self._on_missing = on_missing
        self._load_deaths: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._arena_bytes = arena_bytes
        self._on_ask = on_ask
        self._placement = placement  # of the one executor, where that is not beside the server
        self._executors: dict[str, Executor] = {}
        self._made: dict[str, tuple[GpuLet, list[ModelSpec]]] = {}  # what each process of a gpu-let was started for
        self._replaced: list[Executor] = []  # by others of the same name; they end what they have
        self._lock = asyncio.Lock()
        self._closing = False
        self._watchers: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """Whether all its executors are; not while it is parked."""
        return not self.parked and not any(executor.died.is_set() for executor in self._executors.values())

    @property
    def slower(self) -> list[str]:
        """What runs without CUDA graphs here that should have them, a line each."""
        return [line for executor in self._executors.values() for line in executor.slower]

    @property
    def pids(self) -> list[int]:
        """Processes of its executors that live."""
        return [executor.pid for executor in self._executors.values() if not executor.died.is_set()]

    def left_out(self) -> set[str]:
        """Models without which it started again since the last call, because of an error: another try costs nobody."""
        left_out, self._left_out = self._left_out, set()
        return left_out

    def executor(self, gpu_let: str) -> Executor:
        """The executor that runs this gpu-let. Raises KeyError."""
        return self._executors[gpu_let if self.backend in PER_GPU_LET else WHOLE]

    async def start(self) -> None:
        """Raises ExecutorFailed. Executors of gpu-lets start with those."""
        if self.backend not in PER_GPU_LET:
            self._keep(WHOLE, await self._started(WHOLE))

    async def park(self) -> None:
        """Ends its executors; no plan may use it until wake()."""
        async with self._lock:
            self.parked = True
            ended, self._executors = self._executors, {}  # so that nobody starts them again
            self.models.clear()
            self.memory.clear()
            self.gpu_lets = ()
            await asyncio.gather(*(executor.close() for executor in ended.values()))

    async def wake(self) -> None:
        """Starts it again, empty. Raises ExecutorFailed."""
        async with self._lock:
            await self.start()
            self.parked = False

    async def prepare(self, models: Mapping[str, ModelSpec], gpu_lets: Sequence[GpuLet]) -> None:
        """Loads what is not there yet and makes the gpu-lets, in place of those that there are. Raises GemletError.

        A model that cannot be loaded, or whose load the executor does not survive, is a ModelError with its ``key``.

        A device whose executor is being started again gets this when it is back, and nobody waits for that here: other
        devices have given up their gpu-lets. Only what is new to it does: only then it shows whether it can be loaded.
        """
        if self._comes_back and not models.keys() - self.models.keys():
            self.models |= models
            self.gpu_lets = tuple(gpu_lets)
            return
        await self.load(models)
        async with self._lock:
            if self.parked:
                if gpu_lets:
                    raise ExecutorFailed(f"device {self.index} rests")
                return
            if self.backend in PER_GPU_LET:
                await self._processes(models, gpu_lets)
                return
            try:
                executor = await self._load_new(models)  # what has gone with an executor since
                if not executor.died.is_set():
                    await _partition(executor, gpu_lets)
            except ExecutorDied:
                logger.info("device %d is being started again; its gpu-lets come with it", self.index)
            self.models |= models
            self.gpu_lets = tuple(gpu_lets)

    async def restore(self, models: Mapping[str, ModelSpec], gpu_lets: tuple[GpuLet, ...]) -> None:
        """As prepare(), of what it had before. Where it cannot have that, its executors start again with it."""
        if self.gpu_lets == gpu_lets:
            return
        try:
            await self.prepare(models, gpu_lets)
        except Exception as error:  # noqa: BLE001  nobody would ever try again, and requests would wait for nothing
            logger.error("device %d cannot have its gpu-lets back, and starts again with them: %s", self.index, error)
            self.models |= models
            self.gpu_lets = gpu_lets
            for executor in self._executors.values():
                executor.kill()

    async def load(self, models: Mapping[str, ModelSpec]) -> None:
        """The part of prepare() that takes long and changes nothing for what runs. Processes of gpu-lets have none."""
        if self.backend in PER_GPU_LET or not models.keys() - self.models.keys():
            return
        await self._back()
        async with self._lock:
            if not self.parked:
                await self._load_new(models)

    @property
    def _comes_back(self) -> bool:
        """Whether its executor is being started again, which takes as long as loading its models."""
        executor = self._executors.get(WHOLE)
        return executor is not None and executor.died.is_set()

    async def answers(self) -> None:
        """Returns once its executor would carry out an order at once, or is being started again: no device gives up its
        gpu-lets before. One that has stopped is ended: if not by this, then because its batches take too long."""
        executor = self._executors.get(WHOLE)
        if executor is None or self.parked:
            return
        answer = asyncio.ensure_future(executor.ping())
        try:
            while not answer.done():
                idle = not executor.at_work
                await asyncio.wait([answer], timeout=ANSWER_SECONDS)
                if idle and not executor.at_work and not answer.done():
                    logger.error("%s is killed: it answers nothing for %g s", executor.name, ANSWER_SECONDS)
                    executor.kill()
                    await executor.died.wait()
        finally:
            answer.cancel()
        with contextlib.suppress(ExecutorDied):
            await answer

    async def _load_new(self, models: Mapping[str, ModelSpec]) -> Executor:
        executor = self._executors[WHOLE]
        if not executor.died.is_set():
            await self._load(executor, models)
        elif models.keys() - self.models.keys():
            raise self._away()
        return executor

    async def _back(self) -> None:
        """Returns when its executor does not have to be started again. Raises ExecutorFailed."""
        try:
            async with asyncio.timeout(BACK_SECONDS):
                while self._executors[WHOLE].died.is_set() and not (self.parked or self._closing):  # noqa: ASYNC110
                    await asyncio.sleep(BACK_CHECK_S)
        except TimeoutError:
            raise self._away() from None

    def _away(self) -> ExecutorFailed:
        return ExecutorFailed(f"the executor of device {self.index} is being started again", hint="try again later")

    async def retire(self, models: frozenset[str]) -> None:
        """Unloads all models but these, and ends the executors of gpu-lets that are no more."""
        async with self._lock:
            wanted = {gpu_let.name for gpu_let in self.gpu_lets}
            if self.backend in PER_GPU_LET:
                for name in self._executors.keys() - wanted:
                    await self._executors.pop(name).close()
                while self._replaced:
                    await self._replaced.pop().close()
            for model in self.models.keys() - models:
                del self.models[model]
                self.memory.pop(model, None)
                for executor in self._executors.values():
                    if not executor.died.is_set() and self.backend not in PER_GPU_LET:
                        await _unload(executor, model)

    async def close(self, patience_s: float = STOP_SECONDS) -> None:
        """Ends its processes; running batches have this many seconds."""
        self._closing = True
        for watcher in self._watchers:
            watcher.cancel()
        every = [*self._executors.values(), *self._replaced]
        await asyncio.gather(*(executor.close(patience_s) for executor in every))

    async def _load(self, executor: Executor, models: Mapping[str, ModelSpec], *, again: bool = False) -> None:
        """Raises ModelError."""
        for key, spec in models.items():
            if again or key not in self.models:
                try:
                    self.memory[key] = await _within(LOAD_SECONDS, executor, f"loads {spec.name}", executor.load(spec))
                except ModelError as error:
                    error.key = key
                    raise
                except ExecutorDied:
                    self._load_deaths[key] = self._load_deaths.get(key, 0) + 1
                    died = DiedLoading(f"the executor died while it loaded {spec.name}, version {spec.version}")
                    died.key = key
                    raise died from None
                self._load_deaths.pop(key, None)
            self.models[key] = spec

    async def _processes(self, models: Mapping[str, ModelSpec], gpu_lets: Sequence[GpuLet]) -> None:
        fresh: dict[str, Executor] = {}

        async def make(gpu_let: GpuLet) -> None:
            fresh[gpu_let.name] = await self._process(models, gpu_let)

        try:
            async with asyncio.TaskGroup() as starting:  # each imports torch and captures its graphs meanwhile
                for gpu_let in gpu_lets:
                    if gpu_let.name not in self._executors or self._made.get(gpu_let.name) != _made(models, gpu_let):
                        starting.create_task(make(gpu_let))
        except BaseException as error:
            await asyncio.gather(*(executor.close() for executor in fresh.values()))
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise
        self.models |= models
        self.gpu_lets = tuple(gpu_lets)
        self._made = {gpu_let.name: _made(models, gpu_let) for gpu_let in gpu_lets}
        for name, executor in fresh.items():
            if name in self._executors:
                self._replaced.append(self._executors[name])
            self._keep(name, executor)

    async def _process(self, models: Mapping[str, ModelSpec], gpu_let: GpuLet) -> Executor:
        """One for this gpu-let alone, ready. Raises GemletError; nothing is left of it then."""
        executor = await self._started(gpu_let.name, gpu_let)
        try:
            await self._load(executor, {name: models[name] for name in gpu_let.models}, again=True)
            await _partition(executor, [gpu_let])
        except BaseException:
            await executor.close()
            raise
        return executor

    async def _started(self, key: str, gpu_let: GpuLet | None = None) -> Executor:
        name = f"executor of device {self.index}" if gpu_let is None else f"executor of {gpu_let.name}"
        environment = {} if gpu_let is None else {PERCENTAGE: exact_percent(gpu_let.sm)}
        executor = (
            Executor(
                name,
                self.backend,
                self._options,
                environment=environment,
                arena_bytes=self._arena_bytes,
                on_ask=self._on_ask,
            )
            if self._placement is None
            else RemoteExecutor(
                name, self.backend, self._options, self._placement, environment=environment, on_ask=self._on_ask
            )
        )
        await executor.start()
        self.note = executor.note
        logger.debug("%s is process %d%s", name, executor.pid, f" for {key}" if key else "")
        return executor

    def _keep(self, key: str, executor: Executor) -> None:
        self._executors[key] = executor
        watcher = self._tasks.create_task(self._watch(key, executor), name=f"device {self.index}: {executor.name}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, key: str, executor: Executor) -> None:
        """Starts an executor again whenever it died, later and later if it keeps dying."""
        delay = FIRST_DELAY_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await executor.died.wait()
            if self._closing or self._executors.get(key) is not executor:
                return
            self._on_died(executor)
            status = await executor.reap()
            logger.warning("%s ended with status %s; it is started again", executor.name, status)
            if loop.time() - began > STEADY_S or executor.died_at_work:  # then a model's quarantine is the brake
                delay = FIRST_DELAY_S
            while True:
                await asyncio.sleep(delay)
                delay = min(MAX_DELAY_S, 2 * delay)
                try:
                    again = await self._restored(key)
                    break
                except Exception as error:  # noqa: BLE001  the others are served on, and this one is tried again
                    logger.error("%s cannot be started again: %s; next try in %.3g s", executor.name, error, delay)
            if again is None:
                return
            if self._executors.get(key) is not executor:  # meanwhile the device rests, or another took its place
                await again.close()
                return
            self.restarts += 1
            self._executors[key] = again
            self._on_back(again, executor)
            executor = again

    async def _restored(self, key: str) -> Executor | None:
        """A new executor with the present models and gpu-lets; None if it is no longer needed."""
        gpu_let = self._gpu_let(key)
        if key != WHOLE and gpu_let is None:
            return None
        executor = await self._started(key, gpu_let)  # takes its time; plans for the other devices do not wait for it
        try:
            async with self._lock:
                if key != WHOLE and self._gpu_let(key) is None:
                    await executor.close()
                    return None
                models = self.models if gpu_let is None else {key: self.models[key] for key in gpu_let.models}
                missing = await self._load_again(executor, dict(models))
                if missing:
                    self._made.pop(key, None)
                if gpu_let is not None:
                    await _partition(executor, [_without(gpu_let, missing)])
                else:
                    made: tuple[GpuLet, ...] | None = None
                    while made != self.gpu_lets:  # there may be other ones since
                        made = self.gpu_lets = tuple(_without(each, missing) for each in self.gpu_lets)
                        await _partition(executor, made)
        except BaseException:
            await executor.close()
            raise
        return executor

    async def _load_again(self, executor: Executor, models: Mapping[str, ModelSpec]) -> Mapping[str, str]:
        """All but those that cannot be loaded, which are forgotten here; why, by key. Raises GemletError."""
        missing: dict[str, str] = {}
        for key, spec in models.items():
            if self._load_deaths.get(key, 0) >= LOAD_DEATHS:
                missing[key] = f"executors died while they loaded {spec.name}, version {spec.version}"
                continue
            try:
                await self._load(executor, {key: spec}, again=True)
            except ModelError as error:
                if executor.died.is_set():
                    raise
                missing[key] = error.message
                self._left_out.add(key)
        for key, why in missing.items():
            logger.error("%s is served without a model: %s", executor.name, why)
            self.models.pop(key, None)
            self.memory.pop(key, None)
            self._load_deaths.pop(key, None)
            if self._on_missing is not None:
                self._on_missing(self.index, key, why)
        self.gpu_lets = tuple(_without(gpu_let, missing) for gpu_let in self.gpu_lets)
        return missing

    def _gpu_let(self, name: str) -> GpuLet | None:
        return next((gpu_let for gpu_let in self.gpu_lets if gpu_let.name == name), None)


async def _unload(executor: Executor, model: str) -> None:
    """The model is gone then, with its executor at worst, which is started again without it."""
    try:
        await _within(UNLOAD_SECONDS, executor, f"unloads {model}", executor.unload(model))
    except ExecutorDied:
        pass  # which the log says already
    except GemletError as error:
        logger.error("%s: unloading %s: %s", executor.name, model, error)


async def _partition(executor: Executor, gpu_lets: Sequence[GpuLet]) -> None:
    """Raises ModelError, ExecutorDied."""
    await _within(PARTITION_SECONDS, executor, "makes its gpu-lets", executor.partition(gpu_lets))


async def _within(seconds: float, executor: Executor, what: str, order: Awaitable[_Answer]) -> _Answer:
    """What a model's own code is part of. One that never ends costs its executor, and not all orders after it.

    Raises ExecutorDied, and as ``order``.
    """
    try:
        return await asyncio.wait_for(order, seconds)
    except TimeoutError:
        logger.error("%s is killed: it %s for more than %g s", executor.name, what, seconds)
        executor.kill()
        await executor.died.wait()
        raise ExecutorDied(f"{executor.name} was killed: it {what} for more than {seconds:g} s") from None


def _without(gpu_let: GpuLet, missing: Mapping[str, str]) -> GpuLet:
    there = {key: batch for key, batch in gpu_let.models.items() if key not in missing}
    return msgspec.structs.replace(gpu_let, models=there)


def _made(models: Mapping[str, ModelSpec], gpu_let: GpuLet) -> tuple[GpuLet, list[ModelSpec]]:
    """What a process of its own is started for: another share, other models or other files mean another process."""
    return gpu_let, [models[name] for name in gpu_let.models]
