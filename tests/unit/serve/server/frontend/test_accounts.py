"""Whatever clients do in whatever order, what is held for them is held no more when they have their answer, or left."""

from __future__ import annotations

import asyncio
import gzip
import json
import random

import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import unpacking
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_connection import READ_BYTES, Connection
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import HERE_BYTES, Limits
from tests.unit.serve.server.frontend.test_grpc_bytes import PREFACE, frame
from tests.unit.serve.server.frontend.test_http import post
from tests.unit.serve.stand_in import Service, Transport, model

LIMITS = Limits(request_bytes=3 * HERE_BYTES)  # so little that clients have to go
CLIENTS, STEPS, TICKS = 5, 120, 12
ROOM = frame(4, 0, 0, b"\0\4" + (1 << 24).to_bytes(4, "big")) + frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))  # to write
PIECE = 8192  # the largest frame of which a header need not be known


class Elsewhere(unpacking.Unpacking):
    """What another process would do is done when it is told to, or fails. ``waiting``: all that is not done."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    async def until_told(self):
        told = asyncio.get_running_loop().create_future()
        self.waiting.append(told)
        try:
            await told
        finally:
            self.waiting.remove(told)

    async def __call__(self, nbytes, act, *given, peer):
        await self.until_told()
        return act(*given)


class Slow(Service):
    """Loads nothing, and takes its time for that."""

    def __init__(self):
        super().__init__(model(slo_ms=1e9))
        self.unpacking = Elsewhere()

    async def load(self, name, peer):
        await self.unpacking.until_told()
        if name == "gone":
            raise Refusal("unknown", name)

    unload = load


class Wire(Transport):
    """Tells its connection of its end, as the loop does."""

    def __init__(self, connection):
        super().__init__()
        self.connection = connection
        self.is_lost = False

    def write(self, data):
        if not self.closed:
            super().write(data)

    def close(self):
        self.closed = True
        if not self.unread:
            self.lose()

    def abort(self):
        self.closed = True
        self.lose()

    def lose(self):
        if not self.is_lost:
            self.is_lost = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)


class Client:
    """Sends requests piece by piece, reads or does not, leaves."""

    def __init__(self, connection, number, chance):
        self.connection, self.chance = connection, chance
        self.wire = Wire(connection)
        self.unsent = bytearray()
        connection.connection_made(self.wire)
        connection.peer = str(number % 2)
        if hasattr(connection, "control"):
            connection.control.peer = connection.peer

    @property
    def there(self):
        return not self.wire.closed

    def step(self):
        if not self.unsent:
            self.unsent += self.request()
        nbytes = self.chance.choice([1, 200, 5000, len(self.unsent), len(self.unsent)])
        if self.wire.reading:
            piece, self.unsent = self.unsent[:nbytes], self.unsent[nbytes:]
            self.connection.data_received(bytes(piece))

    def reads(self, does):
        unread, self.wire.unread = self.wire.unread, 0 if does else 1000
        if does and unread:
            self.connection.resume_writing()
            if self.wire.closed:
                self.wire.lose()
        elif not does and not unread:
            self.connection.pause_writing()


class Http(Client):
    make, server = Connection, HttpServer

    def request(self):
        kind = self.chance.randrange(7)
        values = self.chance.choice([1, 3000, 30_000])
        body = json.dumps(
            {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, values], "data": [1] * values}]}
        ).encode()
        if kind == 0:
            return b"GET /v2/health/live HTTP/1.1\r\n\r\n"
        if kind == 1:
            return b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n"
        if kind in (2, 3):
            name = self.chance.choice(["echo", "gone"])
            more = "y" * self.chance.choice([0, 20_000, 60_000])
            return post(f"/v2/repository/models/{name}/load", json.dumps({"x": more}).encode())
        if kind == 4:
            return post("/v2/models/echo/infer", gzip.compress(body, 0), "Content-Encoding: gzip")
        return post("/v2/models/echo/infer", body)

    def settled(self):
        connection = self.connection
        held = (connection._large_bytes, connection._out_bytes, connection._pending_bytes, len(connection._exchanges))
        assert held == (0, 0, 0, 0)
        owed = self.owed(connection._request)  # a little of which counts for nothing
        assert owed - READ_BYTES <= connection._held <= owed

    @staticmethod
    def owed(request):
        header = 0 if request.header_complete else request.header_bytes + request.unfinished
        return request.body_bytes + header


class Grpc(Client):
    make, server = GrpcConnection, GrpcServer

    def __init__(self, *given):
        self.stream = -1
        super().__init__(*given)
        self.connection.data_received(PREFACE + ROOM)

    def request(self):
        self.stream += 2
        kind, values = self.chance.randrange(6), self.chance.choice([1, 3000, 30_000])
        name = "ModelInfer" if kind > 1 else "RepositoryModelLoad"
        path = f"/inference.GRPCInferenceService/{name}".encode()
        header = (
            b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01\x04here\x0f\x10\x10application/grpc"
            + b"\x00\x0dgrpc-encoding\x04gzip"
        )  # fmt: skip
        if kind > 1:
            tensor = messages.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[1, values])
            message = messages.ModelInferRequest(model_name="echo", inputs=[tensor])
            if kind == 5:  # which another process reads
                message.inputs[0].contents.fp32_contents.extend([1.0] * values)
            else:
                message.raw_input_contents.append(bytes(4 * values))
        else:
            more = "y" * self.chance.choice([0, 20_000, 60_000])
            message = messages.RepositoryModelLoadRequest(
                repository_name=more, model_name=self.chance.choice(["echo", "gone"])
            )
        data = message.SerializeToString()
        packed = kind == 4
        data = gzip.compress(data, 0) if packed else data
        data = bytes([packed]) + len(data).to_bytes(4, "big") + data
        frames = [frame(1, 4, self.stream, header)]
        ends = self.chance.randrange(8)
        for at in range(0, len(data), PIECE):
            last = at + PIECE >= len(data)
            if ends == 0 and self.chance.randrange(3) == 0:
                return b"".join((*frames, frame(3, 0, self.stream, bytes(4))))  # cancelled within its message
            frames.append(frame(0, int(last), self.stream, data[at : at + PIECE]))
        if ends == 1:
            frames.append(frame(3, 0, self.stream, bytes(4)))
        return b"".join(frames)

    def settled(self):
        connection, calls = self.connection, self.connection._calls.values()
        assert [call.waiting_bytes for call in calls] == [0] * len(calls)
        assert connection._bytes == sum(call.counted for call in calls)
        assert [call.counted for call in calls] == [len(call.buffer) + call.handler.kept_bytes for call in calls]
        assert connection._held == connection._here()


async def ticks(count=TICKS):
    for _ in range(count):
        await asyncio.sleep(0)


async def act(client, elsewhere, chance):
    """Something that may happen at any time."""
    kind = chance.randrange(20)
    waiting = [told for told in elsewhere.waiting if not told.done()]
    if kind < 12:
        client.step()
    elif kind == 12:
        client.wire.abort()
    elif kind == 13:
        client.connection.eof_received()
    elif kind == 14:
        client.connection.evict()
    elif kind in (15, 16):
        client.reads(does=kind == 15)
    elif waiting and kind == 17:
        chance.choice(waiting).set_exception(Refusal("failed", "no memory"))
    elif waiting:
        chance.choice(waiting).set_result(None)
    if chance.randrange(2):
        await ticks(chance.randrange(4))


async def end_of_all(clients, elsewhere):
    """All read, and all is done."""
    for client in clients:
        client.reads(does=True)
    for _ in range(STEPS):
        for told in elsewhere.waiting:
            if not told.done():
                told.set_result(None)
        await ticks()


async def in_any_order(kind, chance):
    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    service = Slow()
    server, clients, number = kind.server(service, LIMITS), [], 0
    server.holdings.budget = chance.choice([1, 2, 10]) * LIMITS.request_bytes
    for _ in range(STEPS):
        while len(clients) < CLIENTS:
            clients.append(kind(kind.make(server), number, chance))
            number += 1
        client = chance.choice(clients)
        if client.there:
            await act(client, service.unpacking, chance)
        else:
            client.reads(does=True)
            await ticks(2)
            clients.remove(client)
        assert server.holdings.total <= server.holdings.budget
    await end_of_all(clients, service.unpacking)
    stay = [client for client in clients if not client.wire.is_lost]
    for client in stay:
        client.settled()
    assert server.holdings.total == sum(client.connection._held for client in stay)
    assert not raised
    for client in stay:
        client.wire.abort()
    await ticks()
    assert server.holdings.total == 0
    assert not server.connections


@pytest.mark.parametrize("kind", [Http, Grpc])
@pytest.mark.parametrize("seed", range(25))
def test_accounts_are_even_in_any_order(kind, seed):
    asyncio.run(in_any_order(kind, random.Random(seed)))
