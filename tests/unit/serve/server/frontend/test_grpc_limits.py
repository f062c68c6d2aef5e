"""What a client may take from a gRPC server: connections."""

from __future__ import annotations

import asyncio

import grpc.aio

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend import limits
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.limits import Limits
from tests.unit.serve.stand_in import Service

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
PATIENCE_S = 60  # a limit for what never comes


async def live(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive",
            request_serializer=messages.ServerLiveRequest.SerializeToString,
            response_deserializer=messages.ServerLiveResponse.FromString,
        )
        answer = await ask(messages.ServerLiveRequest(), wait_for_ready=True, timeout=PATIENCE_S)
        return answer.live


def test_silent_connections_end_and_make_room(monkeypatch):
    monkeypatch.setattr(limits, "GRPC_IDLE_S", 0.2)

    async def run():
        server = GrpcServer(Service(), Limits(connections=2))
        port = await server.listen("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in silent:
            writer.write(HELLO)
        for reader, writer in silent:
            await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
        assert await live(port)
        await server.close()

    asyncio.run(run())
