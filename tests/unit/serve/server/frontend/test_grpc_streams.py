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
