"""What is asked beside inference, and waits for its turn, counts as its client's as well."""

from __future__ import annotations

import asyncio
import contextlib
import json

import grpc.aio
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import CONTROL_BYTES, Limits
from tests.unit.serve.server.frontend.test_http import post
from tests.unit.serve.stand_in import Service, connect, replies

PATIENCE_S = 60  # a limit for what never comes
LARGE = CONTROL_BYTES - 1024
LIMITS = Limits(request_bytes=4 * CONTROL_BYTES)  # of which clients may hold four: 16 such messages


class Loading(Service):
    """Never done with a load."""

    def __init__(self):
        super().__init__()
        self.begun = 0

    async def load(self, name, peer):
        self.begun += 1
        await asyncio.Event().wait()


def load(nbytes):
    return post("/v2/repository/models/echo/load", json.dumps({"x": "y" * nbytes}).encode())


async def ticks(count=8):
    for _ in range(count):
        await asyncio.sleep(0)


def test_requests_that_wait_over_http():
    async def run():
        server = HttpServer(service := Loading(), LIMITS)
        clients = [connect(service, server) for _ in range(24)]
        for connection, _ in clients:
            connection.data_received(load(LARGE))
            await ticks()
            assert server.holdings.total <= server.limits.held_bytes
        assert server.holdings.total >= 12 * LARGE
        refused = [replies(transport.written)[0] for _, transport in clients if transport.written]
        assert len(refused) >= 8
        assert {status for status, _, _ in refused} == {503}
        for connection, _ in clients:
            connection.connection_lost(None)
        await ticks()
        assert server.holdings.total == 0

    asyncio.run(run())


def test_what_is_refused_has_no_turn_any_more():
    async def run():
        server = HttpServer(service := Loading(), LIMITS)
        connection, transport = connect(service, server)
        connection.data_received(load(LARGE) * 20)
        await ticks(100)
        assert {status for status, _, _ in replies(transport.written)} == {503}
        assert transport.closed
        begun = service.begun
        await ticks(100)
        assert service.begun == begun
        connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("nbytes", [10, LARGE])
def test_what_was_answered_is_held_no_more(nbytes):
    async def run():
        server = HttpServer(service := Service())
        connection, transport = connect(service, server)
        connection.data_received(load(nbytes) + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while len(replies(transport.written)) < 2:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0)
        await ticks()
        assert [status for status, _, _ in replies(transport.written)] == [404, 200]
        assert server.holdings.total == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    "procedure", ["inference.GRPCInferenceService/RepositoryModelLoad", "grpc.health.v1.Health/Watch"]
)
def test_calls_that_wait_over_grpc(procedure):
    message = messages.RepositoryModelLoadRequest(repository_name="x" * LARGE, model_name="echo")  # or another service

    async def run():
        server = GrpcServer(Loading(), LIMITS)
        port = await server.listen("127.0.0.1", 0)
        async with contextlib.AsyncExitStack() as channels:
            calls = []
            for _ in range(24):
                options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
                channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
                await channels.enter_async_context(channel)
                ask = channel.unary_stream(f"/{procedure}")
                calls.append(asyncio.ensure_future(_answer(ask(message.SerializeToString(), wait_for_ready=True))))
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                while sum(call.done() for call in calls) < 8:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert 12 * LARGE <= server.holdings.total <= server.limits.held_bytes
            for call in calls:
                call.cancel()
            async with asyncio.timeout(PATIENCE_S):
                while server.holdings.total:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(run())


async def _answer(call):
    """Returns when it has ended."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
