"""Thousands of requests of one client that come at once keep nobody else waiting: over HTTP they are read in turns, and
over both protocols what is beside inference is begun in turns."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from gemlet import turns
from gemlet.serve.server.frontend import http_connection, http_incoming, large_body, limits
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.large_body import PIECE_BYTES
from gemlet.serve.server.frontend.one_by_one import OneByOne
from tests.unit.serve.server.frontend.test_grpc_bytes import HEADER, PREFACE, frame
from tests.unit.serve.stand_in import Service, Transport, connect, replies

LIVE = b"GET /v2/health/live HTTP/1.1\r\n\r\n"
MANY = 5000


class Counted(Service):
    """Counts how often it was asked for one of its models."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def model(self, name, version=""):
        self.asked += 1
        return super().model("echo")


def infer(values):
    body = json.dumps(
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}
    ).encode()
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def turns_until(condition, limit=20 * MANY):
    turns = 0
    while not condition():
        turns += 1
        assert turns < limit
        await asyncio.sleep(0)
    return turns


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("request_", [LIVE, infer([1.0])], ids=["beside inference", "inference"])
def test_others_have_turns_between_requests(request_):
    async def run():
        connection, transport = connect(Service())
        connection.data_received(request_ * MANY)
        assert not transport.reading  # nor is more taken from the client
        assert len(replies(transport.written)) < 100
        assert not connection.unused
        assert not connection.waits_for_client
        turns = await turns_until(lambda: transport.reading)
        assert turns > 50
        await turns_until(lambda: connection.idle)
        assert [status for status, *_ in replies(transport.written)] == [200] * MANY
        assert connection.unused
        assert connection.server.holdings.total == 0

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_what_many_clients_send_at_once_takes_turns_however_little_it_is_of_each(monkeypatch):
    monkeypatch.setattr(turns, "SMALL_S", 1e-9)

    async def run():
        service = Service()
        server = HttpServer(service)
        clients = [connect(service, server) for _ in range(50)]
        for connection, _ in clients:
            connection.data_received(LIVE)
        assert sum(bool(connection._exchanges) for connection, _ in clients) == 1
        await turns_until(lambda: all(transport.written and transport.reading for _, transport in clients))
        assert [replies(transport.written)[0][0] for _, transport in clients] == [200] * 50

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_a_header_that_has_begun_goes_on_in_turns():
    async def run():
        connection, transport = connect(Service())
        connection.data_received(LIVE[:10])
        assert transport.reading
        connection.data_received(LIVE[10:20])
        assert not transport.reading
        await turns_until(lambda: transport.reading)
        connection.data_received(LIVE[20:])
        await turns_until(lambda: transport.written)
        assert replies(transport.written)[0][0] == 200

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_headers_that_are_only_begun_leave_little_room_for_others(monkeypatch):
    monkeypatch.setattr(turns, "SMALL_S", 5.0)

    async def run():
        service = Service()
        server = HttpServer(service)
        server.turns.clock = itertools.count().__next__
        clients = [connect(service, server) for _ in range(10)]
        for connection, _ in clients[:3]:
            connection.data_received(LIVE)
            assert server.turns.has_room()
        clients[3][0].data_received(LIVE[:10])
        assert not server.turns.has_room()

    asyncio.run(run())


def test_no_more_requests_are_kept_than_a_client_may_have_under_way():
    async def run():
        connection, transport = connect(Service())
        connection.data_received(LIVE * MANY)
        assert len(connection._exchanges) < 2 * http_connection.MAX_PIPELINED
        await turns_until(lambda: transport.reading and connection.idle)
        assert len(replies(transport.written)) == MANY

    asyncio.run(run())


async def one_of_forty_is_begun_in_each_turn(service):
    for turn in range(60):
        assert service.asked <= turn
        await asyncio.sleep(0)
    assert service.asked == 40


def test_a_client_has_one_request_beside_inference_begun_in_each_turn():
    async def run():
        service = Counted()
        connection, _ = connect(service)
        connection.data_received(b"GET /v2/models/echo HTTP/1.1\r\n\r\n" * 40)
        await one_of_forty_is_begun_in_each_turn(service)
        connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_bodies_are_whole_that_come_in_parts_among_other_requests():
    async def run():
        connection, transport = connect(Service())
        values = [float(number) for number in range(300)]
        data = (LIVE + infer(values)) * 200
        for at in range(0, len(data), 50_000):
            connection.data_received(data[at : at + 50_000])
            await turns_until(lambda: transport.reading)
        await turns_until(lambda: connection.idle)
        found = replies(transport.written)
        assert len(found) == 400
        assert all(json.loads(body)["outputs"][0]["data"] == values for _, _, body in found[1::2])

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_what_comes_while_the_rest_waits_is_read_after_it():
    async def run():
        connection, transport = connect(Service())
        connection.data_received(LIVE * 1000 + LIVE[:5])
        connection.data_received(LIVE[5:])  # as a transport may do that was just told to pause
        await turns_until(lambda: transport.reading and connection.idle)
        assert len(replies(transport.written)) == 1001

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
def test_a_connection_that_ends_meanwhile_is_not_read_on():
    async def run():
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        connection, transport = connect(Service())
        connection.data_received(LIVE * MANY)
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert raised == []
        assert not transport.reading
        assert connection.server.holdings.total == 0

    asyncio.run(run())


class Clock:
    """Time that passes only as requests are counted."""

    def __init__(self, monkeypatch, loop, service, each):
        monkeypatch.setattr(loop, "time", lambda: 1.0 + each * service.asked)


def test_many_clients_together_have_the_time_of_one(monkeypatch):
    """Others have their turn after so much work, however many connections it is that have more."""
    monkeypatch.setattr(turns, "TURN_S", 0.002)

    async def run():
        loop, service = asyncio.get_running_loop(), Counted()
        server = HttpServer(service)
        connections = [connect(service, server)[0] for _ in range(20)]
        Clock(monkeypatch, loop, service, 0.0005)
        for connection in connections:
            connection.data_received(b"GET /v2/models/echo HTTP/1.1\r\n\r\n" * 30)
        most = before = service.asked
        for _ in range(2000):
            await asyncio.sleep(0)
            before, most = service.asked, max(most, service.asked - before)
        assert service.asked == 20 * 30
        assert most <= 10
        for connection in connections:
            connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_of_grpc_has_one_call_beside_inference_begun_in_each_turn():
    async def run():
        service = Counted()
        connection = GrpcConnection(GrpcServer(service))
        connection.connection_made(Transport())
        header = HEADER.replace(
            b"\x2a/inference.GRPCInferenceService/ModelInfer", b"\x2d/inference.GRPCInferenceService/ModelMetadata"
        )
        calls = (frame(1, 4, stream, header) + frame(0, 1, stream, bytes(5)) for stream in range(1, 80, 2))
        connection.data_received(PREFACE + b"".join(calls))
        await one_of_forty_is_begun_in_each_turn(service)
        connection.connection_lost(None)

    asyncio.run(run())


def test_what_waits_is_not_begun_when_its_client_is_gone():
    async def run():
        begun = []
        pieces = OneByOne(turns.Turns(asyncio.get_running_loop()))
        for number in range(3):
            pieces.add(lambda number=number: begun.append(number))
        assert begun == [0]
        await asyncio.sleep(0)
        pieces.clear()
        for _ in range(3):
            await asyncio.sleep(0)
        pieces.add(lambda: begun.append(3))
        return begun

    assert asyncio.run(run()) == [0, 1, 3]


@pytest.mark.usefixtures("_short")
def test_requests_of_connections_that_end_together_end_in_turns():
    async def run():
        service = Service()
        server = HttpServer(service)
        connections = [connect(service, server)[0] for _ in range(2)]
        for connection in connections:
            for _ in range(60):
                connection.later(asyncio.sleep(3600))
        tasks = [task for connection in connections for task in connection._tasks]
        await asyncio.sleep(0)
        server.turns.over()  # others have begun the turn
        for connection in connections:
            connection.connection_lost(None)
        assert await turns_until(lambda: all(task.cancelled() for task in tasks)) >= 60

    asyncio.run(run())


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("where", ["_take", "flush"])
def test_a_connection_ends_whose_turn_fails(where, monkeypatch):
    """What was taken of it is lost, and no answer would ever come. There may be no memory left."""

    def fail(*_):
        raise MemoryError

    async def run():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        connection, transport = connect(Service())
        monkeypatch.setattr(http_connection.Connection, where, fail)
        if where == "_take":
            monkeypatch.setattr(turns, "SMALL_S", 0.0)
            connection.server.turns.over()
            connection.data_received(LIVE * 1000)
        else:
            connection._flush_later()
        assert not transport.closed
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.closed
        assert [type(each) for each in told] == [MemoryError]
        monkeypatch.undo()
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_body_for_which_there_is_no_memory_has_an_answer(monkeypatch):
    def fail(*_):
        raise MemoryError

    async def run():
        monkeypatch.setattr(http_incoming.Incoming, "on_body", fail)
        connection, transport = connect(Service())
        connection.data_received(infer([1.0]))
        return replies(transport.written)

    ((status, _, body),) = asyncio.run(run())
    assert status == 503
    assert b"no memory" in body


@pytest.mark.usefixtures("_short")
def test_large_bodies_of_clients_who_end_at_once_are_let_go_a_piece_in_a_turn(monkeypatch):
    """To give the memory of 20 MiB back to the system takes two milliseconds."""
    dropped = []
    monkeypatch.setattr(large_body._Memory, "_drop", lambda _, places: dropped.append(places.pop()))
    begun = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % limits.Limits().request_bytes

    async def run():
        service = Service()
        server = HttpServer(service)
        clients = [connect(service, server) for _ in range(10)]
        for connection, transport in clients:
            connection.data_received(begun)
            await turns_until(lambda transport=transport: transport.reading)
            connection._request.body = connection.large(bytes(3 * PIECE_BYTES), 3 * PIECE_BYTES)
        for connection, _ in clients:
            connection.connection_lost(None)
        for _ in range(20):
            assert len(dropped) <= 1
            dropped.clear()
            await turns_until(lambda: dropped)

    asyncio.run(run())
