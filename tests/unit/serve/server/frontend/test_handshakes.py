"""Connections whose TLS handshake goes on count among those that there may be."""

from __future__ import annotations

import asyncio
import asyncio.constants
import asyncio.sslproto
import contextlib
import gc
import itertools
import socket
import ssl
import weakref
from unittest import mock

import pytest
import trustme

from gemlet import tls_reading, turns
from gemlet.serve.server.frontend import grpc_connection, http_connection, limits
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import Limits
from gemlet.tls_reading import Reading
from tests.unit.serve.stand_in import Service, Transport

PATIENCE_S = 60  # a limit for what never comes
MOST = 16
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def _handshakes_have_time(monkeypatch):
    monkeypatch.setattr(limits, "HEADER_S", 3600.0)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


async def silent(port, address="127.0.0.1"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    return asyncio.create_task(reader.read(1)), writer


def with_server(authority, scenario):
    async def run():
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(tls)
        server = HttpServer(Service(), Limits(connections=MOST))
        port = await server.listen("127.0.0.1", 0, tls)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)

        async def ask():
            async with asyncio.timeout(PATIENCE_S):
                there = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
                there[1].write(LIVE)
                return await there[0].readline(), there[1]

        writers = await scenario(port, ask)
        await server.close()
        for writer in writers:
            writer.close()

    asyncio.run(run())


def test_the_oldest_handshakes_of_the_peer_with_the_most_end(authority, monkeypatch):
    monkeypatch.setattr("gemlet.peers.name", lambda connection: connection.getpeername()[0])

    async def scenario(port, ask):
        other, *writers = await silent(port, "127.0.0.2")
        many = [await silent(port) for _ in range(3 * MOST)]
        line, writer = await ask()
        assert line == b"HTTP/1.1 200 OK\r\n"
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([task for task, _ in many[: 2 * MOST]])
        assert not other.done()
        assert not many[-1][0].done()
        return [*writers, writer, *(each for _, each in many)]

    with_server(authority, scenario)


def test_what_is_no_handshake_ends_its_connection_alone(authority):
    async def scenario(port, ask):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(LIVE)
            line, writer = await ask()
            assert line == b"HTTP/1.1 200 OK\r\n"
        return [writer]

    with_server(authority, scenario)


def test_all_that_connect_at_once_are_never_at_their_handshake_at_once(authority, monkeypatch):
    """TLS has a buffer of a quarter of a megabyte for each: 6000 connections of 3 s took 1 GB."""
    there, most = weakref.WeakSet(), []
    begin = asyncio.sslproto.SSLProtocol.__init__

    def begun(self, *given, **more):
        begin(self, *given, **more)
        there.add(self)
        most.append(len(there))

    monkeypatch.setattr(asyncio.sslproto.SSLProtocol, "__init__", begun)

    async def scenario(port, ask):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(90)]
        gc.collect()
        gc.disable()
        try:
            line, writer = await ask()
        finally:
            gc.enable()
        assert line == b"HTTP/1.1 200 OK\r\n"
        assert max(most) <= MOST
        return [writer, *clients]

    with_server(authority, scenario)


def test_a_handshake_that_fails_leaves_nothing_to_pythons_collector(authority, monkeypatch):
    """Waves of 900 clients that sent nothing took 150 MiB in half a minute: what had been made for each stayed."""
    made, there = [], weakref.WeakSet()
    for kind in (Reading, http_connection.Connection):

        def begun(self, *given, begin=kind.__init__, **more):
            begin(self, *given, **more)
            made.append(type(self))
            there.add(self)

        monkeypatch.setattr(kind, "__init__", begun)

    async def scenario(port, _):
        gc.collect()
        gc.disable()
        try:
            for words in (b"", LIVE):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(words)
                writer.write_eof()
                async with asyncio.timeout(PATIENCE_S):
                    await reader.read()
                writer.close()
            async with asyncio.timeout(PATIENCE_S):
                while there:  # noqa: ASYNC110  it tells nobody
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()
        assert Reading in made
        return []

    with_server(authority, scenario)


def test_a_connection_that_has_ended_leaves_nothing_to_pythons_collector(authority, monkeypatch):
    """Which comes late: 900 clients that had gone kept 90 MiB."""
    there = weakref.WeakSet()
    begin = Reading.__init__

    def begun(self, *given, **more):
        begin(self, *given, **more)
        there.add(self)

    monkeypatch.setattr(Reading, "__init__", begun)

    async def scenario(_, ask):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                line, writer = await ask()
                assert line == b"HTTP/1.1 200 OK\r\n"
                writer.close()
            async with asyncio.timeout(PATIENCE_S):
                while there:  # noqa: ASYNC110  it tells nobody
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()
        return []

    with_server(authority, scenario)


@pytest.mark.parametrize("connection", [http_connection.Connection, grpc_connection.GrpcConnection])
def test_a_connection_that_is_closed_twice_can_be_read_and_aborted(authority, connection):
    """asyncio's transport of TLS lets go of all by a second close(): what is left to write was lost where the client
    sent anything, and abort() did nothing."""

    async def run():
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        protocol = asyncio.sslproto.SSLProtocol(
            asyncio.get_running_loop(), asyncio.Protocol(), tls, None, server_side=True, call_connection_made=False
        )
        below = mock.Mock()
        protocol._transport = below
        transport = protocol._get_app_transport()
        kind = HttpServer if connection is http_connection.Connection else GrpcServer
        one = connection(kind(Service()))
        one._transport = transport
        one.close()
        one.close()
        assert transport.is_reading()
        one.abort()
        return below

    below = asyncio.run(run())
    assert below.abort.called or below._force_close.called


async def mute(port, authority):
    """A client that does nothing after its handshake, and does not answer the end of TLS either."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(arrived, leaving, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(leaving.read())
            arrived.write(await reader.read(65536))
    writer.write(leaving.read())
    return reader, writer


def test_connections_that_make_room_end_also_where_the_client_does_not_answer(authority, monkeypatch):
    monkeypatch.setattr(asyncio.constants, "SSL_SHUTDOWN_TIMEOUT", 3600.0)

    async def scenario(port, ask):
        first = [await mute(port, authority) for _ in range(MOST)]
        more = [await mute(port, authority) for _ in range(MOST)]
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in first:
                await reader.read()
        line, writer = await ask()
        assert line == b"HTTP/1.1 200 OK\r\n"
        return [writer, *(each for _, each in (*first, *more))]

    with_server(authority, scenario)


async def room_after(authority, *sent):
    """How much a server takes at once from a client that has sent this, a record each."""
    tls, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(tls)
    authority.configure_trust(trusting)
    at_once = mock.Mock(add=lambda _, act, **_more: act(), clock=lambda: 0.0)
    reading = Reading(tls, asyncio.Protocol, at_once, "one", begin_s=PATIENCE_S)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    transport.write.side_effect = to_client.write
    transport.is_closing.return_value = False
    reading.connection_made(transport)
    rooms = []

    def send():
        while data := to_server.read(len(reading.get_buffer(-1))):
            reading.get_buffer(-1)[: len(data)] = data
            reading.buffer_updated(len(data))
            rooms.append(len(reading.get_buffer(-1)))

    while not reading.done.done():
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        send()
        await asyncio.sleep(0)
    for data in sent:
        client.write(data)
    send()
    reading.connection_lost(None)
    return "ended" if transport.abort.called else rooms[-1]


def test_handshakes_are_answered_in_turns(authority, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(tls_reading, "LEAST", tls_reading.MOST)  # the message comes in one piece
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = sent.read()

    async def run():
        shared = turns.Turns(asyncio.get_running_loop())
        transports = [mock.create_autospec(asyncio.Transport, instance=True) for _ in range(8)]
        readings = [Reading(tls, asyncio.Protocol, shared, "one", begin_s=PATIENCE_S) for _ in transports]
        for reading, transport in zip(readings, transports, strict=True):
            transport.is_closing.return_value = False
            reading.connection_made(transport)
            reading.get_buffer(-1)[: len(hello)] = hello
            reading.buffer_updated(len(hello))
        transports[0].is_closing.return_value = True
        answered = []
        for _ in range(20):
            answered.append(sum(each.write.called for each in transports))
            await asyncio.sleep(0)
        for reading in readings:
            reading.connection_lost(None)
        return answered, transports

    answered, (closed, *others) = asyncio.run(run())
    assert all(after - before <= 1 for before, after in itertools.pairwise(answered))
    assert answered[-1] == len(others)
    assert all(each.pause_reading.call_count == each.resume_reading.call_count == 1 for each in others)
    assert not closed.write.called


@pytest.mark.parametrize(
    ("sent", "room"),
    [
        ([], tls_reading.LEAST),
        ([bytes(16_000)] * 20, tls_reading.MOST),
        ([*[bytes(16_000)] * 20, *[b"x"] * 8000], tls_reading.LEAST),  # as of new keys, which are no data at all
        ([b"x"] * 5000, tls_reading.LEAST),
        ([b"x"] * 20_000, "ended"),
    ],
)
def test_a_client_has_much_room_only_for_data_and_ends_where_it_sends_much_else(authority, sent, room):
    assert asyncio.run(room_after(authority, *sent)) == room


def test_a_connection_ends_whose_turn_fails(monkeypatch):
    """It would be read no more. There may be no memory left."""

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Reading, "_take", fail)
    reading = object.__new__(Reading)
    reading._below = Transport()
    with pytest.raises(MemoryError):
        reading._take_in_turn(1)
    assert reading._below.closed
