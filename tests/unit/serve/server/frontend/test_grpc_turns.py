"""What a client of gRPC sends is read in turns: ten thousand small frames keep nobody else waiting."""

from __future__ import annotations

import asyncio

import pytest

from gemlet import turns
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import grpc_server
from gemlet.serve.server.frontend.grpc_call import GrpcCall
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from tests.unit.serve.server.frontend.test_grpc_bytes import HEADER, PREFACE, frame
from tests.unit.serve.stand_in import Service, Transport

MORE_ROOM = frame(8, 0, 0, (1).to_bytes(4, "big"))
SETTINGS_ACK = frame(4, 1, 0, b"")
PING = frame(6, 0, 0, b"the last")


def connected():
    connection, transport = GrpcConnection(GrpcServer(Service())), Transport()
    connection.connection_made(transport)
    return connection, transport


def test_others_have_turns_between_small_frames(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        connection, transport = connected()
        connection.data_received(PREFACE)
        connection.data_received(MORE_ROOM * 20_000 + PING)
        assert not transport.reading  # nor is more taken from the client
        turns = 0
        while not transport.reading:
            assert PING[9:] not in transport.written
            turns += 1
            await asyncio.sleep(0)
        assert turns > 20
        assert PING[9:] in transport.written  # it was answered, as the last one
        connection.connection_lost(None)

    asyncio.run(run())


def test_what_many_clients_send_at_once_takes_turns_however_little_it_is_of_each(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns, "SMALL_S", 1e-9)

    async def run():
        server = GrpcServer(Service())
        clients = []
        for _ in range(20):
            connection, transport = GrpcConnection(server), Transport()
            connection.connection_made(transport)
            clients.append((connection, transport))
            connection.data_received(PREFACE + PING)
        assert sum(PING[9:] in transport.written for _, transport in clients) == 1
        for _ in range(100):
            await asyncio.sleep(0)
        assert all(PING[9:] in transport.written and transport.reading for _, transport in clients)

    asyncio.run(run())


def test_what_comes_while_the_rest_waits_is_read_after_it(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        connection, transport = connected()
        connection.data_received(PREFACE)
        connection.data_received(MORE_ROOM * 20_000 + PING[:5])
        connection.data_received(PING[5:])  # as a transport may do that was just told to pause
        for _ in range(1000):  # some hundred are needed
            await asyncio.sleep(0)
        assert transport.reading
        assert PING[9:] in transport.written

    asyncio.run(run())


def test_a_client_whose_bytes_wait_here_is_not_too_slow(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        connection, _ = connected()
        connection.data_received(PREFACE + frame(1, 4, 1, HEADER))
        later = connection.server.loop.time() + 1e6
        assert connection.too_slow(later)  # it owes a message
        connection.data_received(MORE_ROOM * 20_000)
        assert not connection.too_slow(later)
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_connection_that_ends_meanwhile_is_not_read_on(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        connection, transport = connected()
        connection.data_received(PREFACE + frame(1, 4, 1, HEADER))
        connection.data_received(MORE_ROOM * 20_000)
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert raised == []
        assert not transport.reading

    asyncio.run(run())


STREAM = HEADER.replace(b"\x2a/", b"\x30/").replace(b"ModelInfer", b"ModelStreamInfer")
STREAMS, MESSAGES = 8, 1000


def room(stream):
    return frame(8, 0, stream, (1 << 30).to_bytes(4, "big"))


def test_others_have_turns_between_messages_of_streams(monkeypatch):
    """A message has five bytes at least, and a frame thousands of them."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    taken = []

    def take(asking, data, _encoding):
        taken.append(data)
        asking._asker.refused(asking, Refusal("invalid", "no"))

    monkeypatch.setattr(grpc_server.Asking, "take", take)

    async def run():
        connection, transport = connected()
        numbers = range(1, 2 * STREAMS, 2)
        connection.data_received(
            PREFACE + room(0) + b"".join(frame(1, 4, each, STREAM) + room(each) for each in numbers)
        )
        for each in numbers:
            connection.data_received(frame(0, 1, each, bytes(5) * MESSAGES))
        before, most = 0, 0
        while len(taken) < STREAMS * MESSAGES:
            await asyncio.sleep(0)
            before, most = len(taken), max(most, len(taken) - before)
        assert most <= 2 * STREAMS
        while connection._calls:  # noqa: ASYNC110  each is answered and ends
            await asyncio.sleep(0)
        assert transport.written.count(b"no") == STREAMS * MESSAGES
        connection.connection_lost(None)

    async def within_a_minute():
        async with asyncio.timeout(60):
            await run()

    asyncio.run(within_a_minute())


def test_small_frames_that_follow_large_ones_are_read_a_few_at_a_time():
    """By its bytes a small frame takes a hundred times as long: what the large ones took says nothing of it."""

    async def run():
        connection, _ = connected()
        connection.server.turns.clock = lambda: 0.0  # nothing takes any time, so all would be read at once
        connection.data_received(PREFACE + SETTINGS_ACK + frame(1, 4, 1, STREAM))
        taken, take = [], connection._take
        connection._take = lambda data: (taken.append(len(data)), take(data))
        connection.data_received(frame(0, 0, 1, b"\0" + (1 << 20).to_bytes(4, "big")))
        for _ in range(2):
            connection.data_received(frame(0, 0, 1, bytes(16_384)) * 7)
        assert max(taken) > 100_000
        taken.clear()
        connection.data_received(MORE_ROOM * 20_000)
        connection.data_received(MORE_ROOM * 600)
        assert sum(taken) == len(MORE_ROOM * 20_600)
        assert max(taken) <= len(MORE_ROOM * 32)
        connection.connection_lost(None)

    asyncio.run(run())


def test_calls_of_connections_that_end_together_end_in_turns(monkeypatch):
    """A call takes some microseconds to end, and thousands of connections have many each."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        server = GrpcServer(Service())
        connections = [GrpcConnection(server) for _ in range(2)]
        for connection in connections:
            connection.connection_made(Transport())
            for number in range(100):
                connection._calls[number] = GrpcCall(connection, number)
        calls = [call for connection in connections for call in connection._calls.values()]
        server.turns.over()  # others have begun the turn
        for connection in connections:
            connection.connection_lost(None)
        found = []
        while not all(call.over for call in calls):
            found.append(sum(call.over for call in calls))
            await asyncio.sleep(0)
        assert len(found) >= 100
        assert not any(connection._calls for connection in connections)
        assert server.holdings.total == 0

    asyncio.run(run())


@pytest.mark.parametrize("where", ["_act", "_flush", "look"])
def test_a_connection_ends_whose_turn_fails(where, monkeypatch):
    """What was taken of it is lost, and no answer would ever come. There may be no memory left."""

    def fail(*_):
        raise MemoryError

    async def run():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        connection, transport = connected()
        connection.data_received(PREFACE)
        connection.data_received(frame(1, 4, 1, HEADER) + frame(0, 0, 1, bytes(3)))
        monkeypatch.setattr(GrpcConnection, where, fail)
        if where == "_act":
            monkeypatch.setattr(turns, "TURN_S", 0.0)
            connection.data_received(MORE_ROOM * 20_000)
        elif where == "look":
            connection.look_later(connection._calls[1])
        else:
            connection._plan()
        assert not transport.closed
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.closed
        assert [type(each) for each in told] == [MemoryError]
        monkeypatch.undo()
        connection.connection_lost(None)

    asyncio.run(run())
