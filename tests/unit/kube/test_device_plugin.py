"""The device plugin against a kubelet that is played by the test, over the sockets and messages of the real one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import grpc
import pytest

from gemlet.errors import DeviceError, GemletError
from gemlet.kube import rpc
from gemlet.kube.device_plugin import Allocations, DevicePlugin, Gpus, SlotResource, UnitResources, check_list
from gemlet.kube.dra import DraDriver
from gemlet.kube.kubelet_socket import keep_registered
from gemlet.kube.protocol import deviceplugin_pb2 as messages
from gemlet.kube.share import Pod
from gemlet.kube.slots import gpu_of
from tests.unit.kube import fakes, grpc_peer

FIRST, SECOND = fakes.FIRST, fakes.SECOND


class PlayedKubelet:
    """Registration, and calls to every plugin that registered."""

    def __init__(self, directory):
        self.directory = directory
        self.registered = asyncio.Queue()
        self._server = None
        self._channels = {}

    async def start(self):
        self._server = grpc.aio.server()
        grpc_peer.serve(self._server, "v1beta1.Registration", self)
        self._server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self):
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        await self._server.stop(0)
        for path in self.directory.iterdir():  # as the real one does when it starts
            path.unlink()

    async def Register(self, request, context):
        await self.registered.put(request)
        return messages.Empty()

    def call(self, registered, method):
        name = registered.endpoint
        if name not in self._channels:
            self._channels[name] = grpc.aio.insecure_channel(f"unix:{self.directory / name}")
        return grpc_peer.method(self._channels[name], "v1beta1.DevicePlugin", method)


class Setup:
    def __init__(self, node):
        self.directory = node.path / "device-plugins"
        self.directory.mkdir(exist_ok=True)
        self.node = node
        self.gpus = Gpus()
        self.pods = fakes.FakeKubelet()
        self.annotations = {}
        self.container = {"name": "c"}  # of any requested pod
        self.more = {}  # of its specification
        self.kubelet = PlayedKubelet(self.directory)
        self.allocations = Allocations(node.book, self.gpus, kubelet=self.pods, pods=self.seen)

    async def seen(self, pod):
        if self.annotations is None:
            raise GemletError("GET pods: 503", hint="check that the apiserver runs")
        containers = [{"name": "sidecar", "env": [{"name": "LD_PRELOAD", "value": "its.so"}]}, self.container]
        containers = self.more.get("containers", []) + containers
        spec = {**self.more, "containers": containers}
        meta = {"namespace": pod.namespace, "name": pod.name, "uid": f"uid-{pod.name}", "annotations": self.annotations}
        return {"metadata": meta, "spec": spec}

    @contextlib.asynccontextmanager
    async def running(self, *resources):
        await self.gpus.set(fakes.GPUS)
        await self.gpus.serve(True)
        tasks = [
            asyncio.create_task(keep_registered(DevicePlugin(resource, self.gpus), self.directory, look=0.02))
            for resource in resources
        ]
        await self.kubelet.start()
        try:
            yield [await self.kubelet.registered.get() for _ in resources]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.kubelet.stop()

    @contextlib.asynccontextmanager
    async def running_units(self):
        """The plugins of time and of memory."""
        async with self.running(*UnitResources(self.allocations, packing="pack").both()) as plugins:
            by_name = {plugin.resource_name: plugin for plugin in plugins}
            yield by_name["gemlet.dev/compute-units"], by_name["gemlet.dev/memory-units"]

    def slots(self):
        return SlotResource(self.allocations, per_gpu=4, packing="pack")

    async def allocate(self, plugin, *ids):
        request = messages.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = await self.kubelet.call(plugin, "Allocate")(request)
        return answer.container_responses[0]

    async def pre_start(self, plugin, *ids):
        await self.kubelet.call(plugin, "PreStartContainer")(messages.PreStartContainerRequest(devices_ids=ids))

    def admit(self, plugin, pod, *ids, uid=""):
        self.pods.holders |= {
            (plugin.resource_name, device): Pod(namespace="ns", name=pod, container="c", uid=uid) for device in ids
        }


@pytest.fixture
def setup(node):
    return Setup(node)


def test_registration_says_what_the_kubelet_may_call(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            assert (plugin.version, plugin.resource_name) == ("v1beta1", "gemlet.dev/share")
            options = await setup.kubelet.call(plugin, "GetDevicePluginOptions")(messages.Empty())
            assert options == plugin.options
            assert options.pre_start_required
            assert options.get_preferred_allocation_available

    run(scenario())
    assert not list(setup.directory.iterdir()), "no socket is left"


def test_health_follows_the_gpus_and_the_daemon(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            watch = setup.kubelet.call(plugin, "ListAndWatch")(messages.Empty())
            first = await watch.read()
            assert [device.health for device in first.devices] == ["Healthy"] * 8
            assert first.devices[0].topology.nodes[0].ID == 0
            await setup.gpus.set(fakes.GPUS[1:])
            changed = await watch.read()
            assert {device.ID[:40]: device.health for device in changed.devices} == {
                FIRST: "Unhealthy",
                SECOND: "Healthy",
            }
            await setup.gpus.serve(False)
            assert {device.health for device in (await watch.read()).devices} == {"Unhealthy"}
            watch.cancel()

    run(scenario())


def test_a_slot_from_allocation_to_its_end(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            slot = f"{FIRST}::1"
            answer = await setup.allocate(plugin, slot)
            (share,) = setup.node.book.shares.values()
            assert answer.envs["GEMLET_SHARE_ID"] == share.id
            assert answer.envs["GEMLET_STRICT"] == "1"
            assert answer.mounts[1].host_path == str(setup.node.shares / share.id)
            amounts, _, device = setup.node.daemon.opened[share.group]
            assert (amounts, device) == (fakes.amounts(20, 25), 0)
            setup.admit(plugin, "p", slot)
            setup.annotations = {"gemlet.dev/compute-limit": "80", "gemlet.dev/memory": "8Gi"}
            await setup.pre_start(plugin, slot)
            assert set(setup.node.daemon.opened) == {"ns/p/c"}
            amounts, _, _ = setup.node.daemon.opened["ns/p/c"]
            assert amounts == fakes.amounts(8, 25, 80)
            await setup.pre_start(plugin, slot)  # the container is started again
            # The slot goes to another container: the first is gone, whether or not the plugin has been told.
            await setup.allocate(plugin, slot)
            assert len(setup.node.book.shares) == 1
            assert "ns/p/c" not in setup.node.daemon.opened

    run(scenario())


async def refused(call, text):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    details = caught.value.details()
    assert details.startswith("gemlet: ")
    assert text in details
    assert "\n" not in details


def test_what_cannot_be_given_is_refused_with_a_message(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            await refused(setup.allocate(plugin, f"{FIRST}::0", f"{FIRST}::1"), "exactly one slot, not 2; ask for 1")
            setup.node.daemon.down = True
            await refused(setup.allocate(plugin, f"{FIRST}::0"), "no daemon")
            assert not setup.node.book.shares

    run(scenario())


def test_a_container_does_not_start_with_annotations_that_make_no_sense(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            slot = f"{FIRST}::0"
            await setup.allocate(plugin, slot)
            await refused(setup.pre_start(plugin, slot), "knows no container")
            setup.admit(plugin, "p", slot)
            setup.annotations = {"gemlet.dev/memory": "21Gi"}
            await refused(setup.pre_start(plugin, slot), "21Gi is more than its 20Gi")
            setup.annotations = None
            await refused(setup.pre_start(plugin, slot), "check that the apiserver runs")

    run(scenario())


def test_a_container_that_would_leave_its_share_does_not_start(setup, run):
    """Admission may not have been asked: its variables come after those of the node."""

    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            slot = f"{FIRST}::0"
            await setup.allocate(plugin, slot)
            setup.admit(plugin, "p", slot)
            setup.container = {"name": "c", "env": [{"name": "LD_PRELOAD", "value": "x.so"}]}
            await refused(setup.pre_start(plugin, slot), "spec.containers[1].env[LD_PRELOAD]")
            setup.container = {"name": "c", "securityContext": {"privileged": True}}
            await refused(setup.pre_start(plugin, slot), "spec.containers[1].securityContext.privileged")
            setup.container = {"name": "c"}
            setup.more = {"hostUsers": False}
            await refused(setup.pre_start(plugin, slot), "spec.hostUsers")
            setup.more = {"hostPID": True}
            await refused(setup.pre_start(plugin, slot), "spec.hostPID")
            setup.node.book.host = dataclasses.replace(setup.node.book.host, access="simulated")
            await setup.pre_start(plugin, slot)

    run(scenario())


def test_a_pod_is_not_checked_by_what_its_successor_of_that_name_says(setup, run):
    """One that would leave its share, deleted with --force while its image comes, and made again without that."""

    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            slot = f"{FIRST}::0"
            await setup.allocate(plugin, slot)
            setup.admit(plugin, "p", slot, uid="uid-before")
            await refused(setup.pre_start(plugin, slot), f"ns/p is another now than the one that has {slot}")
            setup.admit(plugin, "p", slot, uid="uid-p")
            await setup.pre_start(plugin, slot)

    run(scenario())


@pytest.mark.parametrize("resource", ["gemlet.dev/share", "gemlet.dev/compute-units"])
def test_no_container_starts_with_the_devices_of_another_that_was_not_checked(setup, run, resource):
    """The kubelet gives an init container's devices to a container of the pod, and names that one when either starts:
    where admission was not asked, the init container had the GPU without the hook."""
    asks = {"resources": {"limits": {resource: "1"}}}
    bad = {"name": "bad", "env": [{"name": "LD_PRELOAD", "value": ""}]} | asks

    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            slot = f"{FIRST}::0"
            await setup.allocate(plugin, slot)
            setup.admit(plugin, "p", slot)
            for kind, where in (("initContainers", "initContainers[0]"), ("containers", "containers[0].env")):
                setup.more = {kind: [bad]}
                await refused(setup.pre_start(plugin, slot), f"spec.{where}")
            setup.more = {"initContainers": [bad | {"resources": {}}]}
            await setup.pre_start(plugin, slot)

    run(scenario())


def test_units_are_one_share_once_the_kubelet_knows_the_container(setup, run):
    async def scenario():
        async with setup.running_units() as (compute, memory):
            time_ids = [f"{SECOND}::c{n}" for n in range(25)]
            await setup.allocate(compute, *time_ids)
            (share,) = setup.node.book.shares.values()
            assert share.amounts.memory == 0, "nothing can be allocated until memory is known"
            asked = messages.PreferredAllocationRequest()
            free = [f"{gpu}::m{n}" for gpu in (FIRST, SECOND) for n in range(64)]
            asked.container_requests.add(available_deviceIDs=free, allocation_size=32)
            hint = await setup.kubelet.call(memory, "GetPreferredAllocation")(asked)
            memory_ids = list(hint.container_responses[0].deviceIDs)
            assert all(device.startswith(SECOND) for device in memory_ids)
            await setup.allocate(memory, *memory_ids)
            setup.admit(compute, "p", *time_ids)
            await refused(setup.pre_start(compute, *time_ids), "memory-units]: is missing")
            setup.admit(memory, "p", *memory_ids)
            await setup.pre_start(compute, *time_ids)
            await setup.pre_start(memory, *memory_ids)
            assert setup.node.daemon.opened["ns/p/c"][0] == fakes.amounts(8, 25)

    run(scenario())


def test_memory_that_is_asked_for_first_goes_where_time_is_left(setup, run):
    """The kubelet takes a container's resources in any order."""

    async def hint(plugin, size, *free):
        asked = messages.PreferredAllocationRequest()
        asked.container_requests.add(available_deviceIDs=free, allocation_size=size)
        answer = await setup.kubelet.call(plugin, "GetPreferredAllocation")(asked)
        return list(answer.container_responses[0].deviceIDs)

    async def scenario():
        async with setup.running_units() as (compute, memory):
            await setup.allocate(compute, *(f"{FIRST}::c{n}" for n in range(70)))
            await setup.allocate(memory, *(f"{FIRST}::m{n}" for n in range(64)))
            free_memory = [f"{FIRST}::m{n}" for n in range(64, 320)] + [f"{SECOND}::m{n}" for n in range(320)]
            chosen = await hint(memory, 64, *free_memory)
            assert {device[:40] for device in chosen} == {SECOND}
            await setup.allocate(memory, *chosen)
            free_time = [f"{FIRST}::c{n}" for n in range(70, 100)] + [f"{SECOND}::c{n}" for n in range(100)]
            assert {device[:40] for device in await hint(compute, 20, *free_time)} == {SECOND}, "with its memory"

    run(scenario())


def test_units_of_two_gpus_are_of_one_that_has_room(setup, run):
    async def scenario():
        async with setup.running_units() as (compute, memory):
            await setup.allocate(compute, *(f"{FIRST}::c{n}" for n in range(60)))
            time_ids = [f"{FIRST}::c{n}" for n in range(60, 100)] + [f"{SECOND}::c{n}" for n in range(30)]
            memory_ids = [f"{FIRST}::m0", f"{SECOND}::m0", f"{SECOND}::m1"]
            answer = await setup.allocate(compute, *time_ids)
            await setup.allocate(memory, *memory_ids)
            setup.admit(compute, "p", *time_ids)
            setup.admit(memory, "p", *memory_ids)
            await setup.pre_start(compute, *time_ids)
            await setup.pre_start(memory, *memory_ids)
            assert answer.envs["GEMLET_SHARE_COMPUTE"] == "70"
            opened, _, device = setup.node.daemon.opened["ns/p/c"]
            assert (opened.compute, opened.memory, device) == (70, 3 * 256 * 2**20, 1)

    run(scenario())


def test_a_container_whose_units_are_on_no_single_gpu_waits_for_one(setup, run):
    """The kubelet ends a pod whose Allocate is refused, and tries PreStartContainer again."""

    async def scenario():
        async with setup.running_units() as (compute, memory):
            for gpu in (FIRST, SECOND):
                await setup.allocate(compute, *(f"{gpu}::c{n}" for n in range(70)))
            time_ids = [f"{gpu}::c{n}" for gpu in (FIRST, SECOND) for n in range(70, 95)]
            answer = await setup.allocate(compute, *time_ids)
            assert answer.envs["GEMLET_SHARE_COMPUTE"] == "50", "what it will have"
            await setup.allocate(memory, f"{SECOND}::m0", f"{SECOND}::m1")
            setup.admit(compute, "p", *time_ids)
            setup.admit(memory, "p", f"{SECOND}::m0", f"{SECOND}::m1")
            for _ in range(2):
                await refused(setup.pre_start(compute, *time_ids), f"compute: 50 does not fit on {FIRST}, of which 70")
                assert "ns/p/c" not in setup.node.daemon.opened
            (first,) = [s.id for s in setup.node.book.shares.values() if s.gpus == (FIRST,) and s.granted.compute == 70]
            await setup.node.book.close(first)
            await setup.pre_start(compute, *time_ids)
            opened, _, device = setup.node.daemon.opened["ns/p/c"]
            assert (opened.compute, opened.memory, device) == (50, 512 * 2**20, 0)

    run(scenario())


def test_memory_that_its_gpu_has_not_left_is_waited_for(setup, run):
    async def scenario():
        async with setup.running_units() as (compute, memory):
            for pod, number, memory_ids in (
                ("p", 0, [f"{FIRST}::m{n}" for n in range(320)]),
                ("q", 1, [f"{SECOND}::m{n}" for n in range(20)]),
            ):
                await setup.allocate(compute, f"{FIRST}::c{number}")
                await setup.allocate(memory, *memory_ids)
                setup.admit(compute, pod, f"{FIRST}::c{number}")
                setup.admit(memory, pod, *memory_ids)
            await setup.pre_start(compute, f"{FIRST}::c0")
            await refused(setup.pre_start(compute, f"{FIRST}::c1"), f"memory: 5Gi does not fit on {FIRST}")

    run(scenario())


def large_node(number, gib):
    return [
        dataclasses.replace(
            fakes.GPUS[0],
            index=each,
            uuid=f"GPU-00000000-0000-0000-0000-0000000000{each:02x}",
            memory=gib * fakes.GIB,
            numa=each // 4,
        )
        for each in range(number)
    ]


def test_the_memory_of_the_largest_node_is_listed(setup, run):
    """Eight GPUs of 288 GiB, eight times over: the message had 4.9 MB, and gRPC takes 4 MiB. The plugin of memory was
    ended by that each time it registered."""
    gpus = large_node(8, 288 * 8)

    async def scenario():
        async with setup.running_units() as (_, memory):
            setup.gpus.all.clear()
            await setup.gpus.set(gpus)
            await setup.gpus.serve(False)
            watch = setup.kubelet.call(memory, "ListAndWatch")(messages.Empty())
            listed = [device.ID for device in (await watch.read()).devices]
            watch.cancel()
            assert len(listed) == len(set(listed)) == 8 * 288 * 8 * 4
            request = messages.PreferredAllocationRequest()
            request.container_requests.add(available_deviceIDs=listed, allocation_size=64)
            hint = await setup.kubelet.call(memory, "GetPreferredAllocation")(request)
            chosen = list(hint.container_responses[0].deviceIDs)
            assert len(chosen) == 64
            assert len({gpu_of(device) for device in chosen}) == 1

    run(scenario())


def test_a_node_of_which_no_list_is_taken_is_refused(setup):
    both = UnitResources(setup.allocations, packing="pack").both()
    for resource in both:
        check_list(resource, large_node(8, 288 * 8))
    with pytest.raises(DeviceError, match=r"147456 gemlet.dev/memory-units: it has 7\d{6} bytes, of at most") as caught:
        check_list(both[1], large_node(16, 288 * 8))
    assert "memoryOversubscription" in caught.value.hint
    check_list(setup.slots(), large_node(16, 288 * 8))


def test_of_a_kubelet_that_went_while_it_took_the_list_nothing_stays(setup, run):
    async def scenario():
        plugin = DevicePlugin(setup.slots(), setup.gpus)
        driver = DraDriver(setup.node.book, setup.gpus, fakes.FakeApi(), pool="n1")
        before = asyncio.all_tasks()
        for _ in range(3):
            for stream in (plugin.ListAndWatch(None), driver.NodeWatchResources(None)):
                await anext(stream)
                await stream.aclose()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    run(scenario())


def test_a_restarted_kubelet_is_registered_with_again(setup, run):
    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            await setup.allocate(plugin, f"{FIRST}::0")
            for _ in range(2):
                await setup.kubelet.stop()
                await setup.kubelet.start()
                again = await setup.kubelet.registered.get()
                assert again.resource_name == plugin.resource_name
                watch = setup.kubelet.call(again, "ListAndWatch")(messages.Empty())
                assert len((await watch.read()).devices) == 8
                watch.cancel()
            assert len(setup.node.book.shares) == 1, "running pods are left alone"

    run(scenario())


def test_a_full_disk_when_the_kubelet_restarts_does_not_end_the_agent(setup, run, monkeypatch):
    start, full = rpc.RpcServer.start, [28, 28]

    async def tried(self, socket):
        if full:
            raise OSError(full.pop(), "No space left on device")
        await start(self, socket)

    async def scenario():
        async with setup.running(setup.slots()) as (plugin,):
            monkeypatch.setattr(rpc.RpcServer, "start", tried)
            await setup.kubelet.stop()
            await setup.kubelet.start()
            again = await setup.kubelet.registered.get()
            assert (again.resource_name, full) == (plugin.resource_name, [])

    run(scenario())


def test_a_socket_that_cannot_be_made_at_all_is_an_error(setup, run, monkeypatch):
    async def never(self, socket):
        raise OSError(36, "File name too long")

    monkeypatch.setattr(rpc.RpcServer, "start", never)
    (setup.directory / "kubelet.sock").touch()
    with pytest.raises(OSError, match="too long"):
        run(keep_registered(DevicePlugin(setup.slots(), setup.gpus), setup.directory))


def test_a_hundred_allocations_are_answered(setup, run):
    async def scenario():
        async with setup.running(SlotResource(setup.allocations, per_gpu=50, packing="pack")) as (plugin,):
            for number in range(100):
                await setup.allocate(plugin, f"{(FIRST, SECOND)[number % 2]}::{number // 2}")

    run(scenario())
