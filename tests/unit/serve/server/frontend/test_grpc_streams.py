"""Streams over gRPC: each request has its answer, also one that cannot be read."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import uuid

import grpc.aio
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import Asking, GrpcServer, InferStream
from gemlet.serve.server.frontend.regions import FOLDER
from tests.unit.serve.server.frontend.test_grpc_bytes import PREFACE, frame
from tests.unit.serve.server.frontend.test_grpc_turns import STREAM
from tests.unit.serve.stand_in import Service, Transport, model

PATIENCE_S = 60  # a limit for what never comes
MIB = 1 << 20
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
def key():
    """A shared memory object of 1 MiB."""
    found = f"gemlet-test-{uuid.uuid4().hex}"
    descriptor = os.open(FOLDER / found, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(descriptor, MIB)
    os.close(descriptor)
    yield found
    (FOLDER / found).unlink()


def about(number, nbytes):
    request = messages.ModelInferRequest(model_name="echo", id=str(number))
    one = request.inputs.add(name="X", datatype="FP32", shape=[1, nbytes // 4])
    one.parameters["shared_memory_region"].string_param = "r"
    one.parameters["shared_memory_byte_size"].int64_param = nbytes
    return request


async def streamed(service, path, requests):
    """The answers to these requests, each sent when the one before it was answered."""
    server = GrpcServer(service)
    await server.listen_at(str(path))
    found = []
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )(timeout=PATIENCE_S)
        for request in requests:
            await stream.write(request)
            found.append(await stream.read())
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    await server.close()
    return found


@pytest.mark.parametrize("nbytes", [64, MIB])
def test_memory_that_cannot_be_read_is_an_answer(key, tmp_path, monkeypatch, nbytes):
    plain, fails = os.preadv, [True]

    def preadv(*given):
        if fails.pop() if fails else False:
            raise OSError(errno.EIO, "no such luck")
        return plain(*given)

    async def run():
        service = Service(model(slo_ms=1e6))
        await service.regions.of(os.getuid).register("r", key, 0, MIB)
        monkeypatch.setattr(os, "preadv", preadv)
        return await streamed(service, tmp_path / "grpc", [about(1, nbytes), about(2, nbytes)])

    failed, answered = asyncio.run(run())
    assert "no such luck" in failed.error_message
    assert failed.infer_response.id == "1"
    assert not answered.error_message
    assert len(answered.infer_response.raw_output_contents[0]) == nbytes


def test_requests_and_streams_that_have_ended_leave_nothing_to_pythons_collector():
    """Each would keep its connection, and what is left of its answers, until that comes."""
    request = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4)])
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    asked = [request.SerializeToString()]
    request.model_name = "none"
    asked.append(request.SerializeToString())

    def there(kind):
        return sum(type(each) is kind for each in gc.get_objects())

    async def run():
        connection = GrpcConnection(GrpcServer(Service()))
        connection.connection_made(Transport())
        connection.data_received(PREFACE + frame(1, 4, 1, STREAM))
        for message in asked:
            connection.data_received(frame(0, 0, 1, b"\0" + len(message).to_bytes(4, "big") + message))
        await asyncio.sleep(0)
        assert (there(Asking), there(InferStream)) == (0, 1)
        connection.connection_lost(None)
        assert there(InferStream) == 0

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


class Slow(Service):
    """Answers a request to the model `slow` only when it is let go."""

    def __init__(self):
        super().__init__(model("slow", slo_ms=1e6), model("echo", slo_ms=1e6))
        self.held = []
        answers_at_once = self.engine.infer

        def infer(call):
            if call.model == "slow":
                self.held.append(call)
            else:
                answers_at_once(call)

        self.engine.infer, self.go_on = infer, answers_at_once


def asks(name, number, nbytes=4):
    request = messages.ModelInferRequest(model_name=name, id=str(number), raw_input_contents=[bytes([number]) * nbytes])
    request.inputs.add(name="X", datatype="FP32", shape=[1, nbytes // 4])
    return request


@pytest.mark.parametrize("nbytes", [4, MIB, 3 * MIB])
def test_answers_of_a_stream_come_in_the_order_of_its_requests(tmp_path, nbytes):
    """Also of one that fails at once, and the memory of others is not sent in their place."""

    async def run():
        service = Slow()
        server = GrpcServer(service)
        await server.listen_at(str(tmp_path / "grpc"))
        async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'grpc'}", options=UNLIMITED) as channel:
            stream = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=messages.ModelInferRequest.SerializeToString,
                response_deserializer=messages.ModelStreamInferResponse.FromString,
            )(timeout=PATIENCE_S)
            order = ["echo", "slow", "echo", "none", "slow", "echo"]
            for number, name in enumerate(order):
                await stream.write(asks(name, number, nbytes if name == "echo" else 4))
            await stream.done_writing()
            found = [await stream.read()]
            while len(service.held) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for call in reversed(service.held):
                service.go_on(call)
            found += [await stream.read() for _ in order[1:]]
            assert await stream.read() is grpc.aio.EOF
        held = server.holdings.total
        await server.close()
        return found, held

    found, held = asyncio.run(run())
    assert [answer.infer_response.id for answer in found] == list("012345")
    assert [bool(answer.error_message) for answer in found] == [False, False, False, True, False, False]
    contents = [answer.infer_response.raw_output_contents for answer in found]
    assert [bytes(each[0][:4]) for each in contents if each] == [bytes([number]) * 4 for number in (0, 1, 2, 4, 5)]
    assert held == 0


def test_answers_that_wait_for_others_count_and_go_with_their_stream():
    async def run():
        service = Slow()
        connection = GrpcConnection(GrpcServer(service))
        connection.connection_made(Transport())
        connection.data_received(PREFACE + frame(1, 4, 1, STREAM))
        for request in (asks("slow", 0), asks("echo", 1, 4096)):
            message = request.SerializeToString()
            connection.data_received(frame(0, 0, 1, b"\0" + len(message).to_bytes(4, "big") + message))
        for _ in range(100):
            await asyncio.sleep(0.01)
            if connection._bytes > 4096:
                break
        assert 4096 < connection._bytes < 8192
        connection.data_received(frame(3, 0, 1, bytes(4)))  # RST_STREAM
        assert connection._bytes == 0

    asyncio.run(run())


STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH = "/grpc.health.v1.Health/Watch"


@pytest.mark.parametrize("procedure", [STREAM_INFER, WATCH])
def test_a_call_that_nobody_would_end_gets_its_status_when_the_server_ends(tmp_path, procedure):
    """The end of the connection alone is an error without a status for a client, which may not know to try again."""

    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)))
        await server.listen_at(str(tmp_path / "grpc"))
        async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'grpc'}") as channel:
            call = channel.stream_stream(procedure)(timeout=PATIENCE_S)
            await call.write(plain(1) if procedure == STREAM_INFER else b"")
            if procedure == WATCH:
                await call.done_writing()
            await call.read()
            server.drain()
            async with asyncio.timeout(PATIENCE_S):
                while server.connections:
                    server.close_idle()
                    await asyncio.sleep(0.005)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == "the server is ending"
        await server.close()

    asyncio.run(run())


def test_a_message_that_is_half_here_when_the_server_ends_is_waited_for():
    async def run():
        server = GrpcServer(Service(model(slo_ms=1e6)))
        connection, transport = GrpcConnection(server), Transport()
        connection.connection_made(transport)
        message = plain(1)
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        connection.data_received(PREFACE + frame(1, 4, 1, STREAM) + frame(0, 0, 1, framed[:9]))
        server.close_idle()
        assert not transport.closed
        before = len(transport.written)
        connection.data_received(frame(0, 0, 1, framed[9:]))
        await asyncio.sleep(0)
        assert b"echo" in transport.written[before:]  # its answer
        server.close_idle()
        await asyncio.sleep(0)
        server.close_idle()
        assert transport.closed
        connection.connection_lost(None)

    asyncio.run(run())


def plain(number):
    request = messages.ModelInferRequest(model_name="echo", id=str(number))
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(b"four")
    return request.SerializeToString()
