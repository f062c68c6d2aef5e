"""Streams over gRPC: each request has its answer, also one that cannot be read."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid

import grpc.aio
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.regions import FOLDER
from tests.unit.serve.stand_in import Service, model

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
        service.regions.of(os.getuid).register("r", key, 0, MIB)
        monkeypatch.setattr(os, "preadv", preadv)
        return await streamed(service, tmp_path / "grpc", [about(1, nbytes), about(2, nbytes)])

    failed, answered = asyncio.run(run())
    assert "no such luck" in failed.error_message
    assert failed.infer_response.id == "1"
    assert not answered.error_message
    assert len(answered.infer_response.raw_output_contents[0]) == nbytes
