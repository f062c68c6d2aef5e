"""The device plugin's answers to the kubelet, for clusters of any version.

Allocate gets only device ids, so it opens a share with the amounts of these ids. PreStartContainer, called when the
kubelet knows the pod, gives the share the pod's name and applies its annotations. A pod whose request turns out to be
impossible then does not start, and its event says why.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gemlet.errors import DeviceError, GemletError
from gemlet.kube import kubelet_checkpoint, names, placement, rpc, slots, units
from gemlet.kube.ask import for_container
from gemlet.kube.escape import check_counted
from gemlet.kube.pod_events import error_message
from gemlet.kube.protocol import deviceplugin_pb2 as messages
from gemlet.kube.request import Amounts, in_force
from gemlet.kube.share import Pod, Share, group_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from collections.abc import Set as AbstractSet

    from gemlet.kube.book import ShareBook
    from gemlet.kube.edits import Edits
    from gemlet.kube.inventory import Gpu
    from gemlet.kube.placement import Packing
    from gemlet.kube.pod_resources import Assignments

logger = logging.getLogger(__name__)

MAX_LIST_BYTES = 4 * 1024 * 1024  # of a message that the kubelet takes: gRPC's default


class Gpus:
    """The GPUs there are now, and a way to wait for a change."""

    def __init__(self) -> None:
        self.all: list[Gpu] = []
        self.healthy: set[str] = set()
        self.serving = False  # whether the daemon can enforce anything
        self.withheld: AbstractSet[str] = frozenset()  # ids of devices of shares that could not be brought back
        self._changed = asyncio.Condition()

    def with_(self, found: list[Gpu]) -> list[Gpu]:
        """All that there will be with what NVML shows: one that has been there and is not any more is not gone."""
        return list(({gpu.uuid: gpu for gpu in self.all} | {gpu.uuid: gpu for gpu in found}).values())

    def named(self) -> list[Gpu]:
        """Each device name once, as a ResourceSlice may have it: of GPUs that NVML gave one number, one after the
        other, that which is there now."""
        there_last = sorted(self.all, key=lambda gpu: gpu.uuid in self.healthy)
        owner = {gpu.device: gpu.uuid for gpu in there_last}
        return [gpu for gpu in self.all if owner[gpu.device] == gpu.uuid]

    async def set(self, found: list[Gpu]) -> None:
        """Takes what NVML shows. A GPU that has been there and is not any more is unhealthy, not gone."""
        healthy, known = {gpu.uuid for gpu in found}, self.with_(found)
        async with self._changed:
            if healthy != self.healthy or known != self.all:
                self.all, self.healthy = known, healthy
                self._changed.notify_all()

    async def serve(self, serving: bool) -> None:
        """Says whether shares can be given out."""
        async with self._changed:
            if serving != self.serving:
                self.serving = serving
                self._changed.notify_all()

    async def withhold(self, ids: AbstractSet[str]) -> None:
        """Says which devices are not to be given out, nor a container with one be started."""
        async with self._changed:
            if ids != self.withheld:
                self.withheld = ids
                self._changed.notify_all()

    async def change(self) -> None:
        """Returns at the next change."""
        async with self._changed:
            await self._changed.wait()

    @asynccontextmanager
    async def next_change(self) -> AsyncIterator[asyncio.Task[None]]:
        """Waits for one from here on: none is missed while somebody is told of what there is, who may take time, or
        go."""
        change = asyncio.create_task(self.change())
        try:
            await asyncio.sleep(0)  # so that it waits
            yield change
        finally:
            change.cancel()


class Kubelet(Protocol):
    """What this module needs of `PodResources`."""

    async def assignments(self) -> Assignments: ...


class Pods(Protocol):
    """A pod as the apiserver has it, now. Raises GemletError if it cannot be had."""

    async def __call__(self, pod: Pod, /) -> dict[str, Any]: ...


class Resource(Protocol):
    """One resource of the device plugin."""

    resource: str

    def device_ids(self, gpu: Gpu) -> list[str]: ...
    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]: ...
    async def allocate(self, ids: Sequence[str]) -> Edits | None: ...
    async def pre_start(self, ids: Sequence[str]) -> None: ...


class Allocations:
    """What the resources have in common: opening a share for ids, and finding out whose it is."""

    def __init__(self, book: ShareBook, gpus: Gpus, *, kubelet: Kubelet, pods: Pods) -> None:
        self.book = book
        self.gpus = gpus
        self._kubelet = kubelet
        self._pods = pods

    async def open(
        self, kind: str, resource: str, ids: Sequence[str], gpu: str, amounts: Amounts, *, later: Amounts | None = None
    ) -> Edits:
        """Opens a share of ``gpu`` that nobody had before: what is left of an earlier one on these ids is closed.

        ``later``: what the container is to have when it starts, if that is something else; programs can read it.
        """
        share_id = f"{kind}-{secrets.token_hex(8)}"
        share = Share(
            id=share_id,
            group=share_id,
            gpus=(gpu,),
            granted=amounts,
            amounts=amounts,
            devices={resource: tuple(ids)},
            opened=time.time(),
        )
        opened = await self.book.open(share)
        return self.book.edits(msgspec.structs.replace(opened, amounts=later or opened.amounts))

    async def identify(self, resource: str, ids: Sequence[str], grant: Callable[[Assignments, Pod], Amounts]) -> None:
        """Puts the share of ``ids`` under its pod's name with what its annotations say.

        ``grant`` says what the container is worth by what it has. Raises GemletError, and then it must not start.
        """
        # Of a large node's assignments, and of a pod of megabytes, nothing stays while a daemon or a disk is waited
        # for: the kubelet starts any number of containers at once.
        pod, granted = _holder(await self._kubelet.assignments(), resource, ids, grant)
        share = self.of(resource, ids)
        if share is None:
            if resource == names.MEMORY_RESOURCE:
                return
            raise GemletError(
                f"no share is open for {', '.join(ids)} of {resource}",
                hint="delete the pod: its share was lost with the agent's checkpoint",
            )
        changed = self._of_pod(share, pod, granted, await self._pods(pod), ids)
        try:
            await self.book.change(changed)
        except KeyError:
            raise GemletError(
                f"the share of {', '.join(ids)} of {resource} was closed meanwhile",
                hint="wait for the kubelet's next try",
            ) from None

    def _of_pod(self, share: Share, pod: Pod, granted: Amounts, seen: dict[str, Any], ids: Sequence[str]) -> Share:
        """``share`` as ``pod`` is to have it, ``seen`` being what the apiserver has of it. Raises GemletError."""
        meta = seen["metadata"]
        if pod.uid and not kubelet_checkpoint.is_of(pod.uid, meta):
            # Else what is started now would be held to what its successor says, as after `kubectl delete --force`.
            raise GemletError(
                f"the pod {pod.namespace}/{pod.name} is another now than the one that has {', '.join(ids)}",
                hint="wait for the kubelet to end the one before",
            )
        host = self.book.host
        check_counted(seen, pod.container, host.paths, host_pid=host.host_pid)
        amounts = in_force(granted, for_container(meta.get("annotations") or {}, pod.container))
        group = group_name(pod.namespace, pod.name, pod.container)
        user = msgspec.structs.replace(pod, uid=meta.get("uid", ""))
        return msgspec.structs.replace(share, group=group, pod=user, granted=granted, amounts=amounts)

    def of(self, resource: str, ids: Sequence[str]) -> Share | None:
        """The open share that has these ids."""
        wanted = set(ids)
        return next((s for s in self.book.shares.values() if set(s.devices.get(resource, ())) == wanted), None)

    def ranks(self, resource: Resource, available: Sequence[str], packing: Packing) -> list[str]:
        """The GPUs in the order in which ``resource`` is to be taken from them, ``available`` being free."""
        free = Counter(slots.gpu_of(device) for device in available)
        taken = {gpu.uuid: len(resource.device_ids(gpu)) - free[gpu.uuid] for gpu in self.gpus.all}
        return placement.order({gpu.uuid: gpu.nvlink for gpu in self.gpus.all}, taken, packing)

    def left(self, resource: str, ids: Sequence[str]) -> dict[str, int]:
        """Percent of each GPU's time that nobody has, apart from who had these ids before."""
        left = dict.fromkeys((gpu.uuid for gpu in self.gpus.all if gpu.uuid in self.gpus.healthy), 100)
        for share in self.book.shares.values():
            if set(ids).isdisjoint(share.devices.get(resource, ())):
                left |= {uuid: left[uuid] - share.granted.compute for uuid in share.gpus if uuid in left}
        return left

    def gpu(self, uuid: str) -> Gpu:
        """Raises GemletError if there is no such GPU."""
        for gpu in self.gpus.all:
            if gpu.uuid == uuid:
                return gpu
        raise GemletError(f"this node has no GPU {uuid}", hint="check `nvidia-smi -L`: the GPU may have been taken out")


def _holder(
    assignments: Assignments, resource: str, ids: Sequence[str], grant: Callable[[Assignments, Pod], Amounts]
) -> tuple[Pod, Amounts]:
    """Who has ``ids``, and what ``grant`` says. Raises GemletError."""
    pod = assignments.holder(resource, ids)
    if pod is None:
        raise GemletError(
            f"the kubelet knows no container that has {', '.join(ids)} of {resource}",
            hint="wait for the kubelet's next try, or delete the pod",
        )
    return pod, grant(assignments, pod)


class SlotResource:
    """gemlet.dev/share: ``per_gpu`` equal parts of each GPU."""

    resource = names.SLOT_RESOURCE

    def __init__(self, allocations: Allocations, *, per_gpu: int, packing: Packing) -> None:
        self._allocations = allocations
        self._per_gpu = per_gpu
        self._packing = packing

    def device_ids(self, gpu: Gpu) -> list[str]:
        return slots.slot_ids(gpu, self._per_gpu)

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        ranks = self._allocations.ranks(self, available, self._packing)
        return slots.preferred(available, must, size, ranks)

    async def allocate(self, ids: Sequence[str]) -> Edits | None:
        slot = slots.only_slot(ids)
        return await self._allocations.open("slot", self.resource, [slot], slots.gpu_of(slot), self._amounts(slot))

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._allocations.identify(self.resource, ids, lambda _, __: self._amounts(slots.only_slot(ids)))

    def _amounts(self, slot: str) -> Amounts:
        return slots.slot_amounts(self._allocations.gpu(slots.gpu_of(slot)), self._per_gpu)


class UnitResources:
    """GaiaGPU's two resources. Time carries the share; memory is paired with it once the kubelet knows the pod.

    The kubelet asks for a container's resources one after the other, in any order. The second is hinted to the GPU of
    the first. Only a hint: the kubelet is asked for the devices that a container really has.
    """

    def __init__(self, allocations: Allocations, *, packing: Packing) -> None:
        self.allocations = allocations
        self.packing = packing
        self._first: tuple[str, str] | None = None  # resource and GPU that wait for the other resource

    def both(self) -> tuple[Resource, Resource]:
        return _ComputeUnits(self), _MemoryUnits(self)

    def near(self, resource: str) -> str | None:
        """The GPU where the container's other resource is, if this is the second."""
        return self._first[1] if self._first is not None and self._first[0] != resource else None

    def gave(self, resource: str, gpu: str) -> None:
        """Takes note of an allocation."""
        second = self._first is not None and self._first[0] != resource
        self._first = None if second else (resource, gpu)

    def freest(self, available: Sequence[str], size: int) -> str | None:
        """Of the GPUs that have ``size`` of ``available``, the one with the most time left."""
        count = Counter(slots.gpu_of(device) for device in available)
        enough = [uuid for uuid in sorted(count) if count[uuid] >= size]
        taken = Counter[str]()
        for share in self.allocations.book.shares.values():
            for uuid in share.gpus:
                taken[uuid] += share.granted.compute
        return min(enough, key=lambda uuid: taken[uuid], default=None)


class _ComputeUnits:
    resource = names.COMPUTE_RESOURCE

    def __init__(self, both: UnitResources) -> None:
        self._both = both

    def device_ids(self, gpu: Gpu) -> list[str]:
        return units.compute_ids(gpu)

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        ranks = self._both.allocations.ranks(self, available, self._both.packing)
        return slots.preferred(available, must, size, ranks, self._both.near(self.resource))

    async def allocate(self, ids: Sequence[str]) -> Edits | None:
        left = self._both.allocations.left(self.resource, ids)
        gpu = units.gpu_for(ids, left)
        # No memory yet: how much it has is known when the kubelet says what else the container was given. And nothing
        # at all where there is no room: a refusal here would end the pod, one before its start lets it wait.
        later = Amounts(memory=0, compute=len(ids), limit=len(ids))
        now = later if left.get(gpu, 0) >= len(ids) else Amounts(memory=0, compute=0, limit=1)
        edits = await self._both.allocations.open("units", self.resource, ids, gpu, now, later=later)
        self._both.gave(self.resource, gpu)
        return edits

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._both.allocations.identify(self.resource, ids, _paired)


class _MemoryUnits:
    resource = names.MEMORY_RESOURCE

    def __init__(self, both: UnitResources) -> None:
        self._both = both

    def device_ids(self, gpu: Gpu) -> list[str]:
        return units.memory_ids(gpu)

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        # Time runs out first, so memory that is requested first goes where most time is left.
        near = self._both.near(self.resource) or self._both.freest(available, size)
        ranks = self._both.allocations.ranks(self, available, self._both.packing)
        return slots.preferred(available, must, size, ranks, near)

    async def allocate(self, ids: Sequence[str]) -> Edits | None:
        self._both.gave(self.resource, units.named_after(ids))
        return None

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._both.allocations.identify(self.resource, ids, _paired)


def _paired(assignments: Assignments, pod: Pod) -> Amounts:
    return units.paired(assignments.ids(names.COMPUTE_RESOURCE, pod), assignments.ids(names.MEMORY_RESOURCE, pod))


class DevicePlugin:
    """v1beta1.DevicePlugin for one resource."""

    def __init__(self, served: Resource, gpus: Gpus) -> None:
        self.served = served
        self._gpus = gpus

    @staticmethod
    def options() -> messages.DevicePluginOptions:
        """What the kubelet may call beside Allocate."""
        return messages.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: Any) -> messages.DevicePluginOptions:  # noqa: N802
        return self.options()

    async def ListAndWatch(self, request: Any) -> AsyncIterator[messages.ListAndWatchResponse]:  # noqa: N802
        while True:
            async with self._gpus.next_change() as change:
                yield self._list()
                await change

    async def GetPreferredAllocation(  # noqa: N802
        self, request: messages.PreferredAllocationRequest
    ) -> messages.PreferredAllocationResponse:
        answer = messages.PreferredAllocationResponse()
        for asked in request.container_requests:
            must, size = list(asked.must_include_deviceIDs), asked.allocation_size
            chosen = self.served.preferred(list(asked.available_deviceIDs), must, size)
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def Allocate(  # noqa: N802
        self, request: messages.AllocateRequest
    ) -> messages.AllocateResponse:
        answer = messages.AllocateResponse()
        try:
            for asked in request.container_requests:
                edits = await self.served.allocate(list(asked.devices_ids))
                answer.container_responses.append(allocate_response(edits))
        except (GemletError, OSError) as error:
            logger.warning("allocate resource=%s refused: %s", self.served.resource, error)
            rpc.refuse(error_message(error))
        return answer

    async def PreStartContainer(  # noqa: N802
        self, request: messages.PreStartContainerRequest
    ) -> messages.PreStartContainerResponse:
        try:
            await self.served.pre_start(sorted(request.devices_ids))
        except (GemletError, OSError) as error:
            logger.warning("start resource=%s refused: %s", self.served.resource, error)
            rpc.refuse(error_message(error))
        return messages.PreStartContainerResponse()

    def _list(self) -> messages.ListAndWatchResponse:
        gpus = self._gpus
        return _list(self.served, gpus.all, gpus.healthy if gpus.serving else set(), gpus.withheld)


def _list(
    resource: Resource, gpus: list[Gpu], healthy: AbstractSet[str], withheld: AbstractSet[str] = frozenset()
) -> messages.ListAndWatchResponse:
    answer = messages.ListAndWatchResponse()
    for gpu in gpus:
        well = gpu.uuid in healthy
        numa = None if gpu.numa is None else messages.TopologyInfo(nodes=[messages.NUMANode(ID=gpu.numa)])
        for device in resource.device_ids(gpu):
            health = "Healthy" if well and device not in withheld else "Unhealthy"
            answer.devices.append(messages.Device(ID=device, health=health, topology=numa))
    return answer


def check_list(resource: Resource, gpus: list[Gpu]) -> None:
    """Raises DeviceError if the kubelet would not take the list of ``gpus``, which would end the plugin again and
    again."""
    answer = _list(resource, gpus, set())  # "Unhealthy" is the longer word
    if answer.ByteSize() > MAX_LIST_BYTES:
        raise DeviceError(
            f"the kubelet does not take a list of {len(answer.devices)} {resource.resource}: it has"
            f" {answer.ByteSize()} bytes, of at most {MAX_LIST_BYTES}",
            hint="offer the memory of this node fewer times (memoryOversubscription), or offer slots or claims",
        )


def allocate_response(edits: Edits | None) -> messages.ContainerAllocateResponse:
    """Edits in the kubelet's notation."""
    answer = messages.ContainerAllocateResponse()
    if edits is None:
        return answer
    answer.envs.update(edits.env)
    for mount in edits.mounts:
        answer.mounts.add(container_path=mount.container, host_path=mount.host, read_only=mount.read_only)
    for node in edits.device_nodes:
        answer.devices.add(container_path=node, host_path=node, permissions="rw")
    for name in edits.cdi:
        answer.cdi_devices.add(name=name)
    return answer
