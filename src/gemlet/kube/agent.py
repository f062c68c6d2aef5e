"""`gemlet kube agent`: the tasks of one node, put together here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet import own_memory, paths
from gemlet.daemon.inventory import NvmlInventory
from gemlet.errors import DaemonUnreachable, DeviceError, GemletError
from gemlet.kube import api_server, device_choices, host, http_pages, inventory, kubelet_checkpoint, placement, slices
from gemlet.kube.book import ShareBook
from gemlet.kube.daemon_link import DaemonLink
from gemlet.kube.device_choices import DeviceChoices
from gemlet.kube.device_plugin import Allocations, DevicePlugin, Gpus, SlotResource, UnitResources, check_list
from gemlet.kube.dra import DraDriver
from gemlet.kube.edits import Access, Host
from gemlet.kube.escape import check_host_paths
from gemlet.kube.http_pages import Page
from gemlet.kube.kubelet_checkpoint import KubeletCheckpoint
from gemlet.kube.kubelet_socket import keep_registered
from gemlet.kube.lost_gpus import LossTeller
from gemlet.kube.permits import NotWritten, Permits
from gemlet.kube.plugin_socket import keep_served
from gemlet.kube.pod_events import PodEvents
from gemlet.kube.pod_resources import PodResources
from gemlet.kube.pods import PodFollower
from gemlet.kube.reaper import Reaper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from gemlet.daemon.address import Endpoint
    from gemlet.kube.admission import Face
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.device_plugin import Resource
    from gemlet.kube.placement import Packing

logger = logging.getLogger(__name__)

INVENTORY_SECONDS = 10.0
RESTORE_SECONDS = 2.0
REAP_SECONDS = 15.0
PUBLISH_SECONDS = 5.0
METRICS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How an agent runs.

    ``oversubscribe``: how many times each GPU's memory is offered. ``failed``: what becomes of the claims on a GPU that
    is lost.
    """

    node: str
    endpoint: Endpoint
    api: api_server.Access
    face: Face = "slots"
    slots_per_gpu: int = 4
    packing: Packing = "pack"
    directory: Path = Path("/var/lib/gemlet")
    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")
    access: Access = "runtime"
    preload_file: bool = False
    host_paths: tuple[str, ...] = ()
    oversubscribe: float = 1.0
    failed: slices.Effect = "NoSchedule"
    port: int | None = None


async def run(options: AgentOptions) -> None:
    """Runs until SIGTERM or SIGINT. Raises GemletError and OSError for what is wrong from the start."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    own_memory.give_back()
    async with AsyncExitStack() as stack:
        stack.enter_context(host.alone(options.directory))
        api = await stack.enter_async_context(api_server.connected(options.api))
        agent = Agent(options, api)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(task) for task in agent.tasks()]
            await stopping.wait()
            for task in running:
                task.cancel()
    logger.info("stopped")


class Agent:
    """One node's shares and everything that acts on them."""

    def __init__(self, options: AgentOptions, api: ApiServer) -> None:
        """Raises GemletError if the native parts are missing, OSError if the node's directories cannot be written."""
        self._options = options
        self._api = api
        self._simulated = options.access == "simulated"
        self._driver = NvmlInventory(simulated=self._simulated)
        self._gpus = Gpus()
        self._daemon = DaemonLink(options.endpoint)
        self._restored = False
        self._as_restored: dict[str, inventory.Gpu] = {}  # the GPUs of which the shares have been told
        self._looked = asyncio.Event()  # for the GPUs, with whatever result
        self._book = ShareBook(
            _host(options), daemon=self._daemon, file=options.directory / "checkpoint.json", cdi_directory=options.cdi
        )
        checkpoint = KubeletCheckpoint(options.kubelet / "device-plugins" / kubelet_checkpoint.NAME)
        self._kubelet = PodResources(options.kubelet / "pod-resources" / "kubelet.sock", checkpoint)
        self._events = PodEvents(api)
        choices = DeviceChoices(options.directory / device_choices.NAME)
        self._permits = Permits(options.directory / host.PERMITS)
        self._follower = PodFollower(
            api, self._book, options.node, events=self._events, choices=choices, permits=self._permits
        )
        allocations = Allocations(self._book, self._gpus, kubelet=self._kubelet, pods=self._follower.seen)
        self._resources: list[Resource] = []
        if options.face == "slots":
            self._resources.append(SlotResource(allocations, per_gpu=options.slots_per_gpu, packing=options.packing))
        elif options.face == "units":
            self._resources += UnitResources(allocations, packing=options.packing).both()
        self._dra = None
        if options.face == "dra":
            follower = self._follower
            self._dra = DraDriver(
                self._book,
                self._gpus,
                api,
                pool=options.node,
                look_again=follower.look_again,
                in_use=follower.claims,
            )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What runs for as long as the agent does."""
        options = self._options
        teller = LossTeller(self._events, self._book, self._gpus)
        made = [self._watch_gpus(), self._serve(), self._restore(), self._reap(), self._follower.run(), teller.run()]
        made += [self._keep_out(), self._events.run()]
        if options.port is not None:
            metrics = http_pages.for_all(self._metrics, METRICS_SECONDS)
            made.append(http_pages.serve({"/metrics": metrics, "/healthz": self._healthy}, options.port))
        return made

    async def _watch_gpus(self) -> None:
        told = ""
        while True:
            try:
                found = await asyncio.to_thread(self._read_gpus)
                self._book.gpus = {gpu.uuid: gpu for gpu in found}
                nodes = {gpu.uuid: gpu.node for gpu in found if gpu.node is not None}
                self._book.host = replace(self._book.host, nodes={**self._book.host.nodes, **nodes})
                if (known := self._gpus.with_(found)) != self._gpus.all:
                    for resource in self._resources:
                        check_list(resource, known)
                await self._gpus.set(found)
                told = ""
            except DeviceError as error:
                if str(error) != told:  # a node without GPUs says it once
                    logger.error("devices: %s%s", error, f"; {error.hint}" if error.hint else "")
                    told = str(error)
                await self._gpus.set([])
            self._looked.set()
            own_memory.trim()  # lists of pods and the start itself: megabytes, on each node
            await asyncio.sleep(INVENTORY_SECONDS)

    def _read_gpus(self) -> list[inventory.Gpu]:
        self._driver.devices()  # keeps NVML open, and makes device nodes appear before anything names them
        return [inventory.offered(gpu, self._options.oversubscribe) for gpu in inventory.read()]

    async def _serve(self) -> None:
        # Nothing is given out before it is known what is out already, and that the daemon holds to it.
        while not (self._restored and self._gpus.all):
            await self._gpus.change()
        kubelet = self._options.kubelet
        async with asyncio.TaskGroup() as tasks:
            for resource in self._resources:
                plugin = DevicePlugin(resource, self._gpus)
                tasks.create_task(keep_registered(plugin, kubelet / "device-plugins"))
            if self._dra is not None:
                tasks.create_task(keep_served(self._dra, kubelet))
                tasks.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            try:
                gpus = self._in_order()
                taints = {gpu: slices.taint(gpu, self._gpus, failed=self._options.failed) for gpu in gpus}
                devices = [slices.device(gpu, taint) for gpu, taint in taints.items()]
                if await slices.publish(self._api, self._options.node, devices):
                    tainted = [f"{gpu.device}:{taint.key}" for gpu, taint in taints.items() if taint is not None]
                    logger.info("slices published devices=%d tainted=%s", len(devices), ",".join(tainted) or "none")
            except api_server.ApiError as error:
                logger.warning("slices not published: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_SECONDS):
                    await self._gpus.change()

    def _in_order(self) -> list[inventory.Gpu]:
        gpus = {gpu.uuid: gpu for gpu in self._gpus.named()}
        taken = {uuid: self._book.taken(uuid) for uuid in gpus}
        islands = {gpu.uuid: gpu.nvlink for gpu in gpus.values()}
        return [gpus[uuid] for uuid in placement.order(islands, taken, self._options.packing)]

    async def _restore(self) -> None:
        told = ""
        await self._looked.wait()
        while True:
            try:
                if self._options.oversubscribe > 1:
                    inventory.check_capacity(self._gpus.all, await self._daemon.status())
                gpus = self._book.gpus  # a driver may come later than the agent, and number its GPUs anew
                stale = not self._restored or gpus != self._as_restored
                if stale or self._book.incomplete(await self._daemon.shares()):
                    await self._book.restore(at_once=stale)
                self._restored, self._as_restored = True, gpus
                await self._gpus.withhold(self._book.devices_not_restored())
                await self._gpus.serve(True)
                async with asyncio.timeout(RESTORE_SECONDS):  # a disk may take any time
                    await self._book.catch_up()
                told = ""
            except (GemletError, OSError) as error:
                if isinstance(error, (DaemonUnreachable, inventory.NoCapacity)):
                    await self._gpus.serve(False)  # a pod had better wait than be refused for good
                if str(error) != told:
                    logger.error("shares: %s", error)
                    told = str(error)
            await asyncio.sleep(RESTORE_SECONDS)

    async def _keep_out(self) -> None:
        told = ""
        while True:  # not in `_restore`, which may wait for a daemon
            try:
                self._book.keep_out()
                self._permits.enforce(self._book.shares.keys() | self._book.unaccounted)
                told = ""
            except (NotWritten, OSError) as error:
                if str(error) != told:
                    logger.error("shares: %s", error)
                    told = str(error)
            await asyncio.sleep(RESTORE_SECONDS)

    async def _reap(self) -> None:
        reaper = Reaper(self._book, self._kubelet, self._api, self._events, node=self._options.node)
        steps: list[Callable[[], Awaitable[object]]] = [reaper.look]
        if self._dra is not None:
            steps.append(self._dra.adopt)
        while True:
            await asyncio.sleep(REAP_SECONDS)
            for step in steps:
                try:
                    await step()
                except (GemletError, OSError) as error:
                    logger.warning("reaper: %s", error)
                except Exception:  # as of a claim, which anybody may have written
                    logger.exception("reaper")

    async def _metrics(self) -> Page:
        from gemlet.kube import metrics  # noqa: PLC0415  4 MB that an agent nobody scrapes does without

        try:
            book = self._book
            left_open = book.left_open() | self._permits.left_open()
            counts = metrics.Counts(len(self._permits.refused()), len(left_open), len(book.not_restored()))
            return Page(metrics.render(book.shares.values(), await self._daemon.status(), counts))
        except GemletError as error:
            return Page(f"{error}\n", 503)

    async def _healthy(self) -> Page:
        if not self._restored:
            return Page("the shares of this node are not restored yet\n", 503)
        return Page("ok\n")


def _host(options: AgentOptions) -> Host:
    shares = host.prepare(options.directory)
    hook = host.install_hook(Path(paths.hook_path()), Path(paths.start_check_path()), options.directory)
    if options.face == "dra":
        host.check_runs_programs(options.directory)
    simulated = None
    if options.access == "simulated":
        profiles = Path(paths.__file__).with_name("profiles")
        driver, profiles = host.install_simulated(Path(paths.sim_dir()), profiles, options.directory)
        simulated = (str(driver), str(profiles), str(options.endpoint.machine))
    return Host(
        hook=str(hook),
        shares=str(shares),
        access=options.access,
        simulated=simulated,
        permits=str(options.directory / host.PERMITS),
        preload_file=str(hook.with_name("ld.so.preload")) if options.preload_file else None,
        paths=check_host_paths(
            options.host_paths, map(str, (options.directory, options.kubelet, options.cdi, options.endpoint.directory))
        ),
    )
