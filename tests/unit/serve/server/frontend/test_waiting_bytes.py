"""What waits here for another process counts as its client's, and what a request inflates to does not wait at all."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import struct
from unittest import mock

import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend import infer_json, unpacking
from gemlet.serve.server.frontend.grpc_server import Asking
from gemlet.serve.server.frontend.holdings import Holdings
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import Limits
from gemlet.serve.server.frontend.regions import Regions
from tests.unit.serve.server.frontend.test_http import infer, post, talk
from tests.unit.serve.stand_in import Service, connect, model, replies

MIB = 1 << 20
TEXTS = model("texts", inputs=(("X", "BYTES", (-1,)),), outputs=(("Y", "BYTES", (-1,)),), slo_ms=1e6)


class Waiting(unpacking.Unpacking):
    """Never has its turn."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    async def __call__(self, nbytes, act, *given, peer):
        self.asked += 1
        await asyncio.Event().wait()


class Told(unpacking.Unpacking):
    """Keeps what was asked of which process."""

    def __init__(self):
        super().__init__()
        self.asked = []

    async def __call__(self, nbytes, act, *given, peer):
        self.asked.append((act.__name__, nbytes <= unpacking.SMALL_BYTES))
        return await super().__call__(nbytes, act, *given, peer=peer)


def texts(count):
    """A request of as many texts, and a text, of a kilobyte each; its JSON's length."""
    packed = (struct.pack("<I", 1024) + b"a" * 1024) * count
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1, count], "parameters": {"binary_data_size": len(packed)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + packed, len(head)


@pytest.mark.parametrize("asks", ["an answer in text", "texts to be checked"])
def test_clients_have_no_more_waiting_than_they_may_hold(asks):
    async def run():
        service = Service(model(slo_ms=1e6), TEXTS)
        service.unpacking = Waiting()
        server = HttpServer(service, Limits(request_bytes=2 * MIB))
        clients = [connect(service, server) for _ in range(12)]
        if asks == "an answer in text":
            values = 300_000
            head = {
                "name": "X",
                "datatype": "FP32",
                "shape": [1, values],
                "parameters": {"binary_data_size": 4 * values},
            }
            text = json.dumps({"inputs": [head]}).encode()
            body, length, name = text + bytes(4 * values), len(text), "echo"
        else:
            (body, length), name = texts(1100), "texts"
        for connection, _ in clients:
            connection.data_received(
                post(f"/v2/models/{name}/infer", body, f"Inference-Header-Content-Length: {length}")
            )
            for _ in range(4):  # for the tasks to begin
                await asyncio.sleep(0)
            assert server.holdings.total <= server.limits.held_bytes
        assert service.unpacking.asked == len(clients)
        refused = [replies(transport.written)[0] for _, transport in clients if transport.written]
        assert len(refused) >= 5
        assert {status for status, _, _ in refused} == {503}
        assert {"Retry-After" in headers for _, headers, _ in refused} == {True}
        for connection, _ in clients:
            connection.connection_lost(None)
        for _ in range(4):
            await asyncio.sleep(0)
        assert server.holdings.total == 0

    asyncio.run(run())


@pytest.mark.parametrize("peers", ["one", "several"])
def test_what_a_client_gave_up_is_held_no_more(peers):
    """Else its place would be taken from another client, or from itself once more."""

    async def run():
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        service = Service(TEXTS)
        service.unpacking = Waiting()
        server = HttpServer(service, Limits(request_bytes=2 * MIB))
        clients = [connect(service, server) for _ in range(9)]

        async def ask(number, count):
            connection, _ = clients[number]
            connection.peer = str(number) if peers == "several" else "one"
            body, length = texts(count)
            connection.data_received(post("/v2/models/texts/infer", body, f"Inference-Header-Content-Length: {length}"))
            await asyncio.sleep(0)  # for the task to begin

        await ask(0, 500)
        await ask(0, 500)
        await asyncio.sleep(0.05)  # so it stays the costliest
        for number in range(1, len(clients)):
            await ask(number, 1000)
        for _ in range(4):
            await asyncio.sleep(0)
        answered = [[status for status, _, _ in replies(transport.written)] for _, transport in clients]
        assert answered == [[503, 503], *[[]] * 8]
        assert server.holdings.evicted == 1
        for connection, _ in clients:
            connection.connection_lost(None)
        for _ in range(4):
            await asyncio.sleep(0)
        assert server.holdings.total == 0
        gc.collect()  # a task that nobody asks tells of its failure when it goes
        assert not failures

    asyncio.run(run())


@pytest.mark.parametrize("lines", [1, 50])
def test_a_header_that_has_begun_is_held_for_its_client(lines):
    line = b"A: " + b"a" * (50_000 // lines)

    async def run():
        server = HttpServer(service := Service(), Limits(request_bytes=50_000))
        clients = [connect(service, server) for _ in range(12)]
        for connection, _ in clients:
            connection.data_received(b"GET /v2 HTTP/1.1\r\n" + b"\r\n".join([line] * lines))
            while connection._unread:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert server.holdings.total <= server.limits.held_bytes
        assert server.holdings.total > server.limits.held_bytes // 2
        left = [(connection, transport) for connection, transport in clients if not transport.closed]
        assert 2 <= len(left) <= 4
        for connection, transport in left:
            connection.data_received(b"\r\n\r\n")
            async with asyncio.timeout(60):
                while not transport.written:  # noqa: ASYNC110  it tells nobody
                    await asyncio.sleep(0)
        assert {replies(transport.written)[0][0] for _, transport in left} == {200}
        await asyncio.sleep(0)
        assert server.holdings.total == 0

    asyncio.run(run())


def test_an_answer_that_was_written_waits_no_more():
    async def run():
        service = Service(model(slo_ms=1e6))
        server = HttpServer(service)
        connection, transport = connect(service, server)
        connection.data_received(infer([0.5] * 100_000))
        async with asyncio.timeout(60):
            while not transport.written:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert server.holdings.total == 0
        service.unpacking.close()

    asyncio.run(run())


@pytest.mark.parametrize(("count", "small"), [(200, True), (2000, False)])
def test_a_compressed_request_is_in_another_process_in_one_turn(count, small):
    body, length = texts(count)
    service = Service(TEXTS)
    service.unpacking = Told()
    ((status, _, said),), _ = talk(
        post(
            "/v2/models/texts/infer",
            gzip.compress(body),
            "Content-Encoding: gzip",
            f"Inference-Header-Content-Length: {length}",
        ),
        service=service,
    )
    assert (status, len(json.loads(said)["outputs"][0]["data"])) == (200, count)
    tried, read = ("_unless_large", True), ("unpack", False)
    assert service.unpacking.asked[:-1] == ([tried] if small else [tried, read])  # the last one writes the answer


class Grpc:
    """A call over gRPC whose work the test does."""

    connection = type("Connection", (), {"regions": Regions().of(lambda: None), "peer": "one"})
    remaining_ms, trace, token, held = None, "", b"", 0

    def __init__(self):
        self.work = None

    def holds(self, nbytes):
        self.held += nbytes

    def later(self, work):
        self.work = work


@pytest.mark.parametrize("wrong", [False, True])
def test_a_compressed_message_is_in_another_process_in_one_turn(wrong):
    body, length = texts(2000)
    request = messages.ModelInferRequest(model_name="texts")
    request.inputs.add(name="X", datatype="BYTES", shape=[1, 2000])
    request.raw_input_contents.append(body[length : -1 if wrong else None])

    async def run():
        service, answers, grpc = Service(TEXTS), [], Grpc()
        service.unpacking = Told()
        server = type("Server", (), {"service": service, "unpacking": service.unpacking, "limits": Limits()})
        server.holdings = Holdings(64 * MIB, asyncio.get_running_loop().time)
        asker = mock.Mock()
        asker.answered = lambda _, parts: answers.append(b"".join(parts))
        asker.refused = lambda _, refusal: answers.append(refusal)
        asking = Asking(server, grpc, asker)
        asking.take(gzip.compress(request.SerializeToString()), b"gzip")
        while grpc.work is not None:
            work, grpc.work = grpc.work, None
            await work
        assert service.unpacking.asked == [("_unless_large", True), ("unpack_message", False)]
        assert grpc.held == 0
        if wrong:
            assert "BYTES end within element" in answers[0].message
        else:
            answer = messages.ModelInferResponse.FromString(answers[0])
            assert answer.raw_output_contents == request.raw_input_contents
        service.unpacking.close()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_request_has_beside_its_inputs_waits_as_well(protocol, monkeypatch):
    """Also where another process read it, and its inputs are no views of it."""
    name = "a" * 50_000

    async def run():
        service, admitted = Service(model(slo_ms=1e6)), []
        monkeypatch.setattr(service.engine.room, "enter", lambda *given, **_: admitted.append(given[2]) or "full")
        if protocol == "http":
            connection, transport = connect(service)
            tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
            connection.data_received(
                post("/v2/models/echo/infer", json.dumps({"id": name, "inputs": [tensor]}).encode() + b" " * 20_000)
            )
            async with asyncio.timeout(60):
                while not transport.written:  # noqa: ASYNC110  it tells nobody
                    await asyncio.sleep(0.01)
        else:
            request = messages.ModelInferRequest(model_name="echo", id=name)
            request.inputs.add(name="X", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
            grpc = Grpc()
            server = type("Server", (), {"service": service, "unpacking": service.unpacking, "limits": Limits()})
            server.holdings = Holdings(64 * MIB, asyncio.get_running_loop().time)
            again = b"\x0a\x04echo"  # the model's name, of which the last one counts
            Asking(server, grpc, mock.Mock()).take(request.SerializeToString() + again * 4000, b"")
            await grpc.work
        assert admitted == [len(name) + 4]
        service.unpacking.close()

    asyncio.run(run())


def test_what_is_checked_elsewhere_is_only_what_bytes_of_texts_say():
    """The size of other tensors is checked where requests are queued."""
    asked = infer_json.decode(
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":3}}]}'
    )
    inputs, _, _ = infer_json.assemble(asked, memoryview(b"123"), Service().regions.of(lambda: None))
    assert not inputs[0].checked
