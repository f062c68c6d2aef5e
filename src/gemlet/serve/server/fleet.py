"""The devices as one: the controller changes it, and the engine sends batches to it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gemlet.errors import GemletError
from gemlet.serve.dispatch.engine import EMPTY, IN_PROCESS, Route
from gemlet.serve.execution.backend import GpuLet
from gemlet.serve.execution.executor import STOP_SECONDS
from gemlet.serve.plan.model import Gpu, PlannedGpuLet, Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.dispatch.gpu_lets import GpuLetState
    from gemlet.serve.execution.device import Device
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.plan.model import Plan

    _Had = tuple[dict[str, ModelSpec], tuple[GpuLet, ...]]  # the models and gpu-lets of a device

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that is alive. ``index`` is that of ``Gpu.index`` in plans."""

    index: int
    name: str = ""


class Fleet:
    """Devices, and the plan in force on them."""

    def __init__(self, engine: Engine, devices: Sequence[Device]) -> None:
        self.all_devices = tuple(devices)
        self._engine = engine
        self._by_index = {device.index: device for device in devices}
        self._plan = EMPTY
        self._names: dict[int, list[str]] = {}  # of the gpu-lets in force, by device
        self._next: dict[int, int] = {}
        self._applying = asyncio.Lock()

    def counts(self) -> Mapping[str, int]:
        """Requests that arrived since the last call, by model of the plan."""
        served = self._engine.models
        return {
            name: count
            for name, count in self._engine.counts().items()
            if name in served and served[name].spec.platform != "noop"
        }

    def devices(self) -> Sequence[DeviceInfo]:
        """Those alive: fewer when an executor dies, more when it is back."""
        return [DeviceInfo(device.index, device.note) for device in self.all_devices if device.alive]

    def plan(self) -> Plan:
        """The plan in force; models that this process serves by itself are not in it."""
        return self._plan

    async def apply(self, plan: Plan, models: Mapping[str, ModelSpec] | None = None) -> None:
        """Loads, partitions, adopts, unloads; no request is dropped by it. Raises GemletError: all stays as it was.

        models: what is served from then on, by label, and not before; None: what is served now.
        """
        async with self._applying:
            served = models if models is not None else self._served()
            names: dict[int, list[str]] = {}
            wanted: dict[int, dict[str, ModelSpec]] = {}
            specs: dict[int, list[GpuLet]] = {}
            old = {gpu.index: gpu for gpu in self._plan.gpus}
            for device in self.all_devices:
                gpu = next((gpu for gpu in plan.gpus if gpu.index == device.index), None)
                gpu_lets = gpu.gpu_lets if gpu is not None else ()
                names[device.index] = self._named(device.index, old.get(device.index), gpu_lets)
                wanted[device.index] = _models(served, gpu_lets)
                named = zip(names[device.index], gpu_lets, strict=True)
                specs[device.index] = [_gpu_let(served, name, gpu_let) for name, gpu_let in named]
            # A device does nothing from when it gives up its gpu-lets until the plan is adopted: not as others load.
            before = {device.index: (dict(device.models), device.gpu_lets) for device in self.all_devices}
            await self._on_all(lambda device: device.load(wanted[device.index]), before)
            await self._on_all(lambda device: device.answers(), before)
            if models is not None:
                await self._engine.leave(models)
            try:
                await self._on_all(lambda device: device.prepare(wanted[device.index], specs[device.index]), before)
            except Exception:
                if models is not None:
                    self._engine.stay()
                self._engine.adopt(_with_own(self._there(), self._served()), self._route)
                raise
            self._plan = plan
            self._names = names
            self._engine.adopt(_with_own(plan, served), self._route, models)
            memory = {key: nbytes for device in self.all_devices for key, nbytes in device.memory.items()}
            for each in self._engine.models.values():
                each.memory = memory.get(each.spec.key, each.memory)
            await self._engine.settled()
            for device in self.all_devices:
                await device.retire(frozenset(wanted[device.index]))

    async def complete(self, device: Device) -> None:
        """Tries once more to load what a device started again without: what that asks of others may be there now."""
        async with self._applying:
            gpu = next((gpu for gpu in self._plan.gpus if gpu.index == device.index), None)
            served, gpu_lets = self._served(), gpu.gpu_lets if gpu is not None else ()
            wanted = _models(served, gpu_lets)
            for key in sorted(device.left_out() & (wanted.keys() - device.models.keys())):
                before = dict(device.models), device.gpu_lets
                there = {label: spec for label, spec in served.items() if spec.key in {key, *device.models}}
                named = zip(self._names[device.index], gpu_lets, strict=True)
                try:
                    await device.prepare(_models(there, gpu_lets), [_gpu_let(there, *each) for each in named])
                except GemletError as error:
                    logger.error("device %d stays without %s: %s", device.index, wanted[key].name, error)
                    await device.restore(*before)
                else:
                    logger.info("device %d has %s again", device.index, wanted[key].name)
                self._engine.adopt(_with_own(self._there(), served), self._route)
                await self._engine.settled()
                await device.retire(frozenset(device.models))

    def _there(self) -> Plan:
        """The plan in force without models that a device could not load again when its executor had died."""
        served = self._served()
        gpus = []
        for gpu in self._plan.gpus:
            there = self._by_index[gpu.index].models
            labels = {label: spec for label, spec in served.items() if spec.key in there}
            gpu_lets = tuple(_known(gpu_let, labels) for gpu_let in gpu.gpu_lets)
            gpus.append(msgspec.structs.replace(gpu, gpu_lets=gpu_lets))
        return msgspec.structs.replace(self._plan, gpus=tuple(gpus))

    async def park(self, device: Device) -> bool:
        """Ends a device's executors, unless the plan in force uses it; whether it did."""
        async with self._applying:
            if any(gpu.index == device.index for gpu in self._plan.gpus):
                return False
            await device.park()
            return True

    async def _on_all(self, act: Callable[[Device], Awaitable[None]], before: Mapping[int, _Had]) -> None:
        """All devices at once. If one cannot, they get back what they had. Raises GemletError."""
        outcomes = await asyncio.gather(*(act(device) for device in self.all_devices), return_exceptions=True)
        failure = next((outcome for outcome in outcomes if outcome is not None), None)
        if failure is None:
            return
        for device in self.all_devices:
            models, gpu_lets = before[device.index]
            await device.restore(models, gpu_lets)
            await device.retire(frozenset(models))
        raise failure

    async def close(self, patience_s: float = STOP_SECONDS) -> None:
        """Ends all executors; running batches have this many seconds."""
        await asyncio.gather(*(device.close(patience_s) for device in self.all_devices))

    def _route(self, gpu_let: GpuLetState) -> Route:
        if gpu_let.gpu == IN_PROCESS:
            return Route(None, "here")
        name = self._names[gpu_let.gpu][gpu_let.number]
        return Route(self._by_index[gpu_let.gpu].executor(name), name)

    def _named(self, index: int, old: Gpu | None, gpu_lets: Sequence[PlannedGpuLet]) -> list[str]:
        """An unchanged gpu-let keeps its name; a new name was never in use before."""
        free = list(zip(self._names.get(index, ()), old.gpu_lets if old is not None else (), strict=False))
        names = []
        for gpu_let in gpu_lets:
            same = next((pair for pair in free if _alike(pair[1], gpu_let)), None)
            if same is not None:
                free.remove(same)
                names.append(same[0])
            else:
                number = self._next.get(index, 0)
                self._next[index] = number + 1
                names.append(f"gpu{index}/let{number}")
        return names

    def _served(self) -> dict[str, ModelSpec]:
        return {label: served.spec for label, served in self._engine.models.items()}


def _models(served: Mapping[str, ModelSpec], gpu_lets: Sequence[PlannedGpuLet]) -> dict[str, ModelSpec]:
    """By key, as executors have them."""
    tasks = [task for gpu_let in gpu_lets for task in gpu_let.tasks if task.model in served]
    return {served[task.model].key: served[task.model] for task in tasks}


def _gpu_let(served: Mapping[str, ModelSpec], name: str, gpu_let: PlannedGpuLet) -> GpuLet:
    alone = len(gpu_let.tasks) == 1  # then a batch may become larger than planned
    models = {
        served[task.model].key: max(task.batch, served[task.model].max_batch if alone else 1)
        for task in gpu_let.tasks
        if task.model in served
    }
    return GpuLet(name=name, sm=gpu_let.sm, models=models)


def _with_own(plan: Plan, served: Mapping[str, ModelSpec]) -> Plan:
    """The plan without models that were unloaded since it was made, and, on a pseudo-device, those of this process."""
    own = tuple(
        PlannedGpuLet(sm=1.0, duty_ms=0.0, occupancy=0.0, tasks=(whole_task(spec),))
        for spec in served.values()
        if spec.platform == "noop"
    )
    gpus = tuple(
        msgspec.structs.replace(gpu, gpu_lets=tuple(_known(gpu_let, served) for gpu_let in gpu.gpu_lets))
        for gpu in plan.gpus
    )
    return msgspec.structs.replace(plan, gpus=(*gpus, Gpu(index=IN_PROCESS, memory_mib=0.0, gpu_lets=own)))


def _known(gpu_let: PlannedGpuLet, served: Mapping[str, ModelSpec]) -> PlannedGpuLet:
    """The gpu-let without models that are not served; its number stays."""
    return msgspec.structs.replace(gpu_let, tasks=tuple(task for task in gpu_let.tasks if task.model in served))


def whole_task(spec: ModelSpec, batch: int | None = None) -> Task:
    """A task that nobody planned: no rate, the model's largest batch."""
    return Task(
        model=spec.label,
        rate=0.0,
        capacity=0.0,
        batch=max(1, spec.max_batch if batch is None else batch),
        latency_ms=0.0,
        worst_ms=0.0,
        slo_ms=spec.slo_ms,
        slowdown=1.0,
    )


def _alike(one: PlannedGpuLet, other: PlannedGpuLet) -> bool:
    return one.sm == other.sm and [(task.model, task.batch) for task in one.tasks] == [
        (task.model, task.batch) for task in other.tasks
    ]
