"""gRPC of the agent against that of others: messages, refusals, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import grpc
import pytest

from gemlet.kube import rpc
from gemlet.kube.protocol import deviceplugin_pb2 as messages
from gemlet.kube.protocol import podresources_pb2 as pods
from tests.unit.kube import grpc_peer

PLUGIN, LISTER = "v1beta1.DevicePlugin", "v1.PodResourcesLister"
OLD_AUTHORITY = "/var/lib/kubelet/device-plugins/x.sock"  # what the kubelet of 1.20 to 1.28 names a plugin


class Plugin:
    """A device plugin that answers when it is allowed to."""

    def __init__(self):
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()
        self.listing = 0

    async def GetDevicePluginOptions(self, request):
        return messages.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(self, request):
        self.listing += 1
        try:
            yield messages.ListAndWatchResponse()
            await asyncio.Event().wait()
        finally:
            self.listing -= 1

    async def GetPreferredAllocation(self, request):
        raise ValueError("a fault of ours")

    async def Allocate(self, request):
        self.asked.set()
        await self.allowed.wait()
        return messages.AllocateResponse()

    async def PreStartContainer(self, request):
        rpc.refuse("no such slot; ask for ü")


@contextlib.asynccontextmanager
async def served(path, servant, *, options=None):
    """The servant by us, and a channel of grpcio to it."""
    server = rpc.RpcServer({PLUGIN: servant})
    await server.start(path)
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            yield server, channel
    finally:
        await server.stop(0)


def test_a_kubelet_that_names_the_socket_as_authority_is_answered(tmp_path, run):
    async def steps():
        options = [("grpc.default_authority", OLD_AUTHORITY)]
        async with served(tmp_path / "x.sock", Plugin(), options=options) as (_, channel):
            answer = await grpc_peer.method(channel, PLUGIN, "GetDevicePluginOptions")(messages.Empty(), timeout=60)
            assert answer.pre_start_required

    run(steps())


def test_a_refusal_says_why_and_a_fault_ends_only_its_call(tmp_path, run, caplog):
    async def steps():
        async with served(tmp_path / "x.sock", Plugin()) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await grpc_peer.method(channel, PLUGIN, "PreStartContainer")(messages.PreStartContainerRequest())
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert refused.value.details() == "no such slot; ask for ü"
            request = messages.PreferredAllocationRequest()
            with caplog.at_level(logging.CRITICAL), pytest.raises(grpc.aio.AioRpcError) as failed:
                await grpc_peer.method(channel, PLUGIN, "GetPreferredAllocation")(request)
            assert failed.value.code() is grpc.StatusCode.UNKNOWN
            await grpc_peer.method(channel, PLUGIN, "GetDevicePluginOptions")(messages.Empty())

    run(steps())


def test_a_server_that_stops_lets_calls_end_and_ends_streams(tmp_path, run):
    async def steps():
        plugin = Plugin()
        async with served(tmp_path / "x.sock", plugin) as (server, channel):
            stream = grpc_peer.method(channel, PLUGIN, "ListAndWatch")(messages.Empty())
            await stream.read()
            allocating = asyncio.ensure_future(
                grpc_peer.method(channel, PLUGIN, "Allocate")(messages.AllocateRequest())
            )
            await plugin.asked.wait()
            stopping = asyncio.ensure_future(server.stop(60))
            await asyncio.sleep(0)
            assert not stopping.done()
            plugin.allowed.set()
            assert await allocating == messages.AllocateResponse()
            await stopping
            assert not plugin.listing
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await grpc_peer.method(channel, PLUGIN, "GetDevicePluginOptions")(messages.Empty())
            assert gone.value.code() is grpc.StatusCode.UNAVAILABLE

    run(steps())


class Lister:
    """The kubelet's: so many pods."""

    def __init__(self, count):
        self.count = count

    async def List(self, request, context):
        if not self.count:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limited")
        each = [pods.PodResources(name=f"{number:0250}", namespace="n") for number in range(self.count)]
        return pods.ListPodResourcesResponse(pod_resources=each)


@contextlib.asynccontextmanager
async def listing(path, count):
    server = grpc.aio.server()
    grpc_peer.serve(server, LISTER, Lister(count))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def ask(path, seconds=60):
    return rpc.call(path, LISTER, "List", pods.ListPodResourcesRequest(), seconds=seconds)


def test_an_answer_may_be_larger_than_any_window(tmp_path, run):
    async def steps():
        async with listing(tmp_path / "k.sock", 40_000):
            answer = await ask(tmp_path / "k.sock")
            assert answer.ByteSize() > 8 * 2**20
            assert len(answer.pod_resources) == 40_000

    run(steps())


def test_a_call_that_fails_says_why(tmp_path, run):
    async def steps():
        with pytest.raises(rpc.CallFailed, match="No such file"):
            await ask(tmp_path / "k.sock")
        async with listing(tmp_path / "k.sock", 0):
            with pytest.raises(rpc.CallFailed, match="rate limited"):
                await ask(tmp_path / "k.sock")

    run(steps())


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a"])
def test_garbage_is_a_call_that_fails(tmp_path, run, garbage):
    """Not the end of the agent."""

    async def steps():
        server = grpc.aio.server()

        async def answer(request, context):
            return garbage

        handlers = {"List": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(LISTER, handlers),))
        server.add_insecure_port(f"unix:{tmp_path / 'k.sock'}")
        await server.start()
        try:
            with pytest.raises(rpc.CallFailed, match="cannot be read"):
                await ask(tmp_path / "k.sock")
        finally:
            await server.stop(0)

    run(steps())


@contextlib.contextmanager
def listener(path):
    """What takes connections, and says nothing."""
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(False)
        made.bind(str(path))
        made.listen()
        yield made


def test_a_call_is_not_waited_for_for_ever(tmp_path, run):
    """A kubelet that is stopped still has its socket."""

    async def steps():
        with listener(tmp_path / "k.sock"), pytest.raises(rpc.CallFailed, match="not answered within 0 s"):
            await ask(tmp_path / "k.sock", seconds=0.05)

    run(steps())
