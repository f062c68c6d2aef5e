"""What a client may take from a gRPC server: connections, and room for messages; and what is refused."""

from __future__ import annotations

import asyncio
import contextlib

import grpc.aio
import pytest
from ngh2 import Connection, ResponseReceived, Role, StreamReset

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend import grpc_call, grpc_connection, limits
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.limits import HELD_REQUESTS, Limits
from tests.unit.serve.stand_in import Service, Transport, model

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
PATIENCE_S = 60  # a limit for what never comes
MIB = 1 << 20
HEADERS = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"here"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),  # codespell:ignore te
)  # fmt: skip


async def live(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive",
            request_serializer=messages.ServerLiveRequest.SerializeToString,
            response_deserializer=messages.ServerLiveResponse.FromString,
        )
        answer = await ask(messages.ServerLiveRequest(), wait_for_ready=True, timeout=PATIENCE_S)
        return answer.live


def test_silent_connections_make_room():
    async def run():
        server = GrpcServer(Service(), Limits(connections=2))
        port = await server.listen("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in silent:
            writer.write(HELLO)
        assert await live(port)
        ended = [asyncio.create_task(until_the_end(reader)) for reader, _ in silent]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        assert any(task.done() for task in ended)
        for _, writer in silent:
            writer.close()
        await server.close()
        await asyncio.gather(*ended)

    asyncio.run(run())


async def silent_one(port, address="127.0.0.1"):
    """A connection that says hello, once it is known to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(HELLO)
    await reader.read(1)  # the server's settings
    return reader, writer


def test_the_client_with_the_most_connections_makes_room_first(monkeypatch):
    monkeypatch.setattr("gemlet.peers.name", lambda connection: connection.getpeername()[0])

    async def run():
        server = GrpcServer(Service(), Limits(connections=8))
        port = await server.listen("127.0.0.1", 0)
        first, writer = await silent_one(port, "127.0.0.2")  # silent for the longest
        others = [await silent_one(port) for _ in range(24)]
        (kept,) = [each for each in server.connections if each.peer == "127.0.0.2"]
        assert len(server.connections) <= 8
        for _, each in [*others, (first, writer)]:
            each.close()
        await server.close()
        assert kept.unused

    asyncio.run(run())


def test_connections_that_never_ask_for_anything_end(monkeypatch):
    async def run():
        server = GrpcServer(Service())
        port = await server.listen("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            await ask(messages.ServerLiveRequest().SerializeToString(), wait_for_ready=True, timeout=PATIENCE_S)
            reader, writer = await silent_one(port)
            server.close_slow()
            assert len(server.connections) == 2
            monkeypatch.setattr(limits, "SILENT_S", -1.0)
            server.close_slow()
            await asyncio.wait_for(until_the_end(reader), PATIENCE_S)
            assert [each.asked for each in server.connections] == [True]
            writer.close()
        await server.close()

    asyncio.run(run())


async def until_the_end(reader):
    with contextlib.suppress(ConnectionResetError):
        while await reader.read(1 << 16):
            pass


def echoing(channel):
    return channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelInferResponse.FromString,
    )


def of_size(nbytes, *, text=False):
    request = messages.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="X", datatype="FP32", shape=[1, nbytes // 4])
    if text:
        tensor.contents.fp32_contents.extend([0.5] * (nbytes // 4))
    else:
        request.raw_input_contents.append(bytes(nbytes))
    return request


@pytest.mark.parametrize("text", [False, True])
def test_a_client_may_have_more_under_way_than_there_is_room_for(text, monkeypatch):
    """Its messages come in one after another then; none is lost."""
    monkeypatch.setattr(grpc_connection, "MAX_STREAMS", 16)
    monkeypatch.setattr(grpc_connection, "WINDOWS", 32)
    monkeypatch.setattr(grpc_connection, "STREAM_WINDOW", 64 * 1024)
    nbytes = MIB // 2

    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)), Limits(request_bytes=MIB))
        port = await server.listen("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = echoing(channel)
            request = of_size(nbytes, text=text)
            answers = await asyncio.gather(*[ask(request, timeout=PATIENCE_S) for _ in range(24)])
        await server.close()
        assert [len(answer.raw_output_contents[0]) for answer in answers] == [nbytes] * 24
        assert server.holdings.evicted == 0
        assert server.holdings.total == 0

    asyncio.run(run())


def test_a_message_that_is_too_long_is_refused_before_it_is_here():
    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)), Limits(request_bytes=MIB))
        port = await server.listen("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="expected at most 1048576") as caught:
                await echoing(channel)(of_size(8 * MIB), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len((await echoing(channel)(of_size(64), timeout=PATIENCE_S)).raw_output_contents[0]) == 64
        await server.close()

    asyncio.run(run())


@pytest.mark.parametrize("missing", [8, 0])
def test_who_sends_halves_of_calls_ends_where_others_need_the_room(missing):
    """One holds as much as there is for all, and never ends its messages, or its calls after these; the other has its
    answers."""

    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)), Limits(request_bytes=MIB))
        port = await server.listen("127.0.0.1", 0)
        hoards = []
        for _ in range(HELD_REQUESTS + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            client = Connection(Role.CLIENT)
            client.initiate_connection()
            number = client.send_request([*HEADERS])
            client.send_data(number, b"\0" + MIB.to_bytes(4, "big") + bytes(MIB - missing))
            hoards.append(asyncio.create_task(feed(client, reader, writer)))
        while not server.holdings.evicted:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert len((await echoing(channel)(of_size(MIB // 2), timeout=PATIENCE_S)).raw_output_contents[0]) > 0
        await server.close()
        await asyncio.gather(*hoards)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize("message", [b"", of_size(64).SerializeToString()], ids=["empty", "whole"])
def test_whole_messages_whose_calls_never_end_are_bounded_in_number_and_time(message):
    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)), Limits(request_bytes=MIB, request_s=0.0))
        connection, transport = grpc_connection.GrpcConnection(server), Transport()
        connection.connection_made(transport)
        client = Connection(Role.CLIENT)
        client.initiate_connection()
        number = client.send_request([*HEADERS])
        client.send_data(number, b"\0" + len(message).to_bytes(4, "big") + message)
        connection.data_received(client.data_to_send())
        assert connection._held == 5 + len(message)
        assert connection.waits_for_client  # and so it makes room for others
        assert connection.too_slow(server.loop.time() + 1)
        client.send_data(number, b"", end_stream=True)
        connection.data_received(client.data_to_send())
        await asyncio.sleep(0)
        assert connection.idle
        assert server.holdings.total == 0
        connection.connection_lost(None)

    asyncio.run(run())


def test_calls_that_do_nothing_count_by_their_number():
    """Those of thousands of connections would take a gigabyte."""

    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)))
        connection = grpc_connection.GrpcConnection(server)
        connection.connection_made(Transport())
        client = Connection(Role.CLIENT)
        client.initiate_connection()
        for _ in range(limits.FREE_CALLS + 10):
            client.send_request(
                [*HEADERS[:2], (b":path", b"/inference.GRPCInferenceService/ModelStreamInfer"), *HEADERS[3:]]
            )
        connection.data_received(client.data_to_send())
        assert server.holdings.total == 10 * grpc_call.CALL_BYTES
        connection.connection_lost(None)
        assert server.holdings.total == 0

    asyncio.run(run())


def test_a_header_that_never_ends_counts_and_ends_its_connection():
    """The library keeps a hundred kilobytes of it, for some thousand bytes that the client sends."""
    field = b"\x40\x01a\x1e" + b"b" * 30  # known from now on by its number
    half = b"\x83\x86\x84" + field + b"\xbe" * 900

    def frame(kind, flags, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 1]) + payload

    async def run():
        server = GrpcServer(Service())
        connection = grpc_connection.GrpcConnection(server)
        connection.connection_made(Transport())
        connection.data_received(HELLO)
        assert connection.unused
        for piece in (frame(1, 0, half)[:5], frame(1, 0, half)[5:100], frame(1, 0, half)[100:], frame(9, 0, b"\xbe")):
            connection.data_received(piece)
        now = server.loop.time()
        assert server.holdings.total == grpc_connection.HEADER_COST
        assert connection.began is not None  # and so it makes room for others
        assert connection.waits_for_client
        assert not connection.unused
        assert not connection.too_slow(now + limits.HEADER_S / 2)
        assert connection.too_slow(now + 2 * limits.HEADER_S)
        connection.data_received(frame(9, 4, b"\xbe"))  # it was slow, and ends
        assert server.holdings.total == 0
        assert not connection.too_slow(now + 2 * limits.HEADER_S)
        connection.connection_lost(None)

    asyncio.run(run())


async def feed(client, reader, writer):
    """Sends what there is room for, until the connection ends."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(client.data_to_send())
            await writer.drain()
            data = await reader.read(1 << 16)
            if not data:
                break
            client.receive_data(data)
    writer.close()


@pytest.mark.parametrize("what", ["GET / HTTP/1.1\r\n\r\n", "ping", "window", "header"])
def test_what_is_no_http_2_ends_the_connection_only(what):
    bad = {
        "ping": HELLO + bytes([0, 0, 4, 6, 0, 0, 0, 0, 1]) + b"abcd",
        "window": HELLO + bytes([0, 0, 4, 8, 0, 0, 0, 0, 0]) + bytes(4),
        "header": HELLO + bytes([0, 0, 3, 1, 5, 0, 0, 0, 1]) + b"\xff\xff\xff",
    }.get(what, what.encode())

    async def run():
        server = GrpcServer(Service())
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bad)
        await asyncio.wait_for(until_the_end(reader), PATIENCE_S)
        writer.close()
        assert await live(port)
        await server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({b"content-type": b"text/plain"}, (b":status", b"415")),
        ({b":method": b"GET"}, (b":status", b"415")),
        ({b":path": b"/nowhere"}, (b"grpc-status", b"12")),
        ({b"grpc-encoding": b"br"}, (b"grpc-status", b"12")),
        ({b"grpc-timeout": b"soon"}, (b"grpc-status", b"3")),
    ],
)
def test_calls_that_are_none_are_refused(change, status):
    async def run():
        server = GrpcServer(Service())
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Connection(Role.CLIENT)
        client.initiate_connection()
        client.send_request([*(dict(HEADERS) | change).items()])
        found = None
        while found is None:
            writer.write(client.data_to_send())
            client.receive_data(await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S))
            seen = client.events()
            found = next((each for each in seen if isinstance(each, ResponseReceived)), None)
        assert status in found.headers
        while not any(isinstance(each, StreamReset) for each in seen):  # it has no use for the rest
            client.receive_data(await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S))
            seen = client.events()
        writer.close()
        await server.close()

    asyncio.run(run())


def test_what_is_not_for_inference_has_a_small_message():
    """The event loop reads it."""

    async def run():
        server = GrpcServer(Service())
        port = await server.listen("127.0.0.1", 0)
        answers = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
            for size, packing in ((60_000, None), (70_000, None), (70_000, grpc.Compression.Gzip)):
                name = b"\x0a" + _varint(size) + b" " * size
                try:
                    await ask(name, compression=packing, timeout=PATIENCE_S)
                    answers.append("OK")
                except grpc.aio.AioRpcError as error:
                    answers.append(error.code().name)
        await server.close()
        return answers

    assert asyncio.run(run()) == ["OK", "INVALID_ARGUMENT", "INVALID_ARGUMENT"]


def _varint(number):
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14])
