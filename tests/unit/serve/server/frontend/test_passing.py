"""Large bytes pass to another process beside what is pickled, and are copied where nobody waits for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from unittest import mock

import numpy as np
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Answered, Refusal, Tensor
from gemlet.serve.server.frontend import grpc_wire, http_connection, infer_messages, limits, passing
from gemlet.serve.server.frontend.grpc_call import GrpcCall
from gemlet.serve.server.frontend.grpc_server import Asking, GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.unpacking import Unpacking, unpack_message
from tests.unit.serve.stand_in import Service, connect, model, replies

MIB = 1 << 20


def twice(data):
    return bytes(data) * 2, len(data)


def test_large_bytes_lie_in_the_file_and_small_ones_do_not():
    file = passing.File()
    large, view = bytearray(b"ab" * passing.LARGE_BYTES), memoryview(b"cd" * passing.LARGE_BYTES)
    parcel = passing.pack((large, view[:4], view, [1]), file)
    assert (len(parcel.rest) < 1000, parcel.nbytes) == (True, len(large) + len(view))
    found = passing.unpack(parcel, file)
    assert found == (large, b"cdcd", view, [1])
    assert file.nbytes == 0
    assert passing.pack(b"x", file).nbytes == 0


def test_a_file_that_became_shorter_is_an_error():
    file = passing.File()
    parcel = passing.pack(b"ab" * passing.LARGE_BYTES, file)
    os.ftruncate(file.descriptor, 10)
    with pytest.raises(OSError, match="Input/output"):
        passing.unpack(parcel, file)


@pytest.mark.parametrize("nbytes", [10, passing.LARGE_BYTES, 5 * MIB])
def test_what_another_process_makes_of_bytes_of_any_size_comes_back(nbytes):
    async def run():
        processes = Unpacking()
        try:
            for _ in range(2):  # the files are empty again
                made, length = await processes(nbytes, twice, memoryview(b"x" * nbytes))
                assert (made, length) == (b"x" * 2 * nbytes, nbytes)
        finally:
            processes.close()

    asyncio.run(run())


def test_a_file_that_takes_no_more_is_the_answer_to_one_request(monkeypatch):
    async def run():
        processes = Unpacking()
        try:

            def full(*_given):
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(passing.os, "pwrite", full)
                with pytest.raises(Refusal, match="No space left"):
                    await processes(0, twice, bytes(MIB))
            assert (await processes(0, twice, bytes(MIB)))[1] == MIB
        finally:
            processes.close()

    asyncio.run(run())


def test_raw_contents_are_no_copies_wherever_they_stand():
    request = messages.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    raw = messages.ModelInferRequest(raw_input_contents=[b"abcd", b"efgh"]).SerializeToString()
    message = raw + request.SerializeToString()
    found = infer_messages.divided(message, limits.HERE_BYTES)
    assert found == (request.SerializeToString(), [b"abcd", b"efgh"])
    assert all(each.obj is message for each in found.raw)
    assert infer_messages.divided(message[:-1], limits.HERE_BYTES) is None
    assert infer_messages.divided(message, 100) is None  # fields cost something, too


def test_more_raw_contents_than_inputs_are_refused_where_they_are_read():
    """Before: millions of empty ones came back to the event loop."""
    request = messages.ModelInferRequest(raw_input_contents=[b""] * 3)
    request.inputs.add(name="X", datatype="FP32", shape=[0])
    with pytest.raises(Refusal, match="more entries than there are inputs"):
        infer_messages.plain_message(request.SerializeToString(), MIB)


@pytest.mark.parametrize("rest", [b"", b"\0\0\0\0\2hi"])
def test_a_large_message_is_a_view_of_what_came(rest):
    buffer = bytearray(b"".join(grpc_wire.framed([bytes(MIB)])) + rest)
    compressed, message, left = grpc_wire.taken(buffer, 2 * MIB)
    assert (compressed, len(message), left) == (False, MIB, rest)
    assert message.obj is buffer


def infer(nbytes, *, text=False):
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, nbytes // 4], "parameters": {"binary_data_size": nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": not text}}).encode()
    lines = f"Content-Length: {len(head) + nbytes}\r\nInference-Header-Content-Length: {len(head)}"
    return f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n".encode() + head + bytes(nbytes)


@pytest.mark.parametrize("text", [False, True])
def test_a_large_answer_is_copied_beside_the_loop_and_into_nothing_else(monkeypatch, text):
    threads, copied = [], Tensor.copied

    def noted(tensor):
        threads.append(threading.get_ident())
        return copied(tensor)

    monkeypatch.setattr(Tensor, "copied", noted)

    async def run():
        service, calls, pieces = Service(), [], []
        service.engine.infer = calls.append
        connection, transport = connect(service)
        write = transport.write
        transport.write = lambda data: (pieces.append(len(data)), write(data))
        try:
            connection.data_received(infer(4, text=text))
            data = np.arange(MIB, dtype="<f4")
            calls[0].answer(Answered(model(), [Tensor("Y", "FP32", (1, len(data)), memoryview(data.tobytes()))]))
            while connection._tasks:
                await asyncio.wait(connection._tasks)
        finally:
            service.unpacking.close()
        ((status, headers, body),) = replies(transport.written)
        assert status == 200
        if text:
            assert json.loads(body)["outputs"][0]["data"] == data.tolist()
            assert not threads
        else:
            assert body[int(headers["Inference-Header-Content-Length"]) :] == data.tobytes()
            assert len(threads) == 1
            assert threading.get_ident() not in threads
        assert len(pieces) > 1  # the data is a piece of its own
        assert max(pieces) < len(body)

    asyncio.run(run())


def test_a_small_request_waits_for_none_of_those_of_its_address_who_have_their_turns():
    async def run():
        server = HttpServer(Service())
        many = [connect(server.service, server)[0] for _ in range(10)]
        headers = b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 2000
        server.turns.end()
        for connection in many:
            connection.data_received(headers)
            assert connection._unread
        for nbytes in (4096, http_connection.BODY_BYTES):
            small, transport = connect(server.service, server)
            small.data_received(infer(nbytes))
            assert [status for status, _, _ in replies(transport.written)] == [200]
        large, transport = connect(server.service, server)
        large.data_received(infer(10 * http_connection.BODY_BYTES))
        assert not transport.written
        while not transport.written:  # noqa: ASYNC110  turns of the loop are what is counted
            await asyncio.sleep(0)
        assert sum(bool(connection._unread) for connection in many) == len(many)  # they have had a piece each

    asyncio.run(run())


def test_compressed_bytes_come_back_inflated():
    async def run():
        processes = Unpacking()
        request = messages.ModelInferRequest(model_name="m", raw_input_contents=[bytes(3 * MIB)])
        request.inputs.add(name="X", datatype="UINT8", shape=[3 * MIB])
        try:
            body = memoryview(gzip.compress(request.SerializeToString()))
            structure, (raw,) = await processes.inflating("", unpack_message, body, b"gzip", 4 * MIB)
            del request.raw_input_contents[:]
            assert (structure, raw) == (request.SerializeToString(), bytes(3 * MIB))
        finally:
            processes.close()

    asyncio.run(run())


@pytest.mark.parametrize("more", [0, 100_000])
def test_a_message_keeps_no_more_than_itself_and_a_little(more):
    buffer = bytearray(b"\0" + (100_000).to_bytes(4, "big") + b"x" * 100_000 + b"y" * more)
    _, message, rest = grpc_wire.taken(buffer, MIB)
    assert isinstance(message, bytes) is bool(more)
    assert (bytes(message), bytes(rest)) == (b"x" * 100_000, b"y" * more)


def test_a_request_counts_with_all_of_its_body():
    async def run():
        calls = []
        service = Service()
        service.engine.infer = calls.append
        connection, _ = connect(service)
        text = (
            b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}]}'
        )
        text += b" " * 10_000
        head = (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n"
        )
        connection.data_received(head % (len(text) + 4, len(text)) + text + b"abcd")
        call = GrpcCall(mock.Mock(), 1)
        request = messages.ModelInferRequest(model_name="echo", id="x" * 10_000, raw_input_contents=[b"abcd"])
        request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
        Asking(GrpcServer(service), call, mock.Mock()).take(request.SerializeToString(), b"")
        assert [each.request_bytes for each in calls] == [len(text) + 4, request.ByteSize()]

    asyncio.run(run())
