"""How many connections there may be, and which of them end for others."""

from __future__ import annotations

import asyncio
from unittest import mock

from gemlet import peers as peers_module
from gemlet.serve.server.frontend import logs
from gemlet.serve.server.frontend.http_connection import Connection
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import Limits
from tests.unit.serve.server.frontend.test_http import infer
from tests.unit.serve.server.frontend.test_http_limits import SMALL, Held
from tests.unit.serve.stand_in import Service, connect, replies


def test_connections_that_nobody_uses_make_room_for_new_ones():
    async def run():
        server = HttpServer(Service(), SMALL)
        idle, idle_transport = connect(server.service, server)
        idle.data_received(infer([1.0]))  # answered: nothing is due
        at_work, work_transport = connect(server.service, server)
        at_work.data_received(infer([1.0])[:20])
        newest, transport = connect(server.service, server)
        assert idle_transport.closed
        assert not work_transport.closed
        newest.data_received(infer([2.0]))
        assert [status for status, _, _ in replies(transport.written)] == [200]

    asyncio.run(run())


def connected(server, *peers):
    """A connection of each, of which every one waits for a model; its transport, and whether it was taken."""
    found = []
    for peer in peers:
        with mock.patch.object(peers_module, "name", return_value=peer):
            connection, transport = connect(server.service, server)
        taken = not transport.written
        connection.data_received(infer([1.0]))
        found.append((transport, taken))
    return found


def test_nobody_is_kept_out_by_another_who_has_many_connections():
    async def run():
        server = HttpServer(Held(), Limits(connections=4))
        (first, _), (second, _), *_ = connected(server, "many", "many", "many", "many")
        ((_, taken),) = connected(server, "few")
        assert taken
        assert first.closed  # it has waited for the longest
        ((refused, taken),) = connected(server, "many")
        assert not taken
        assert replies(refused.written)[0][0] == 503
        assert not second.closed
        assert connected(server, "few")[0][1]
        assert not connected(server, "few")[0][1]  # both have as many now

    asyncio.run(run())


def test_nobody_loses_a_connection_that_is_not_used_to_another_who_has_more():
    async def run():
        server = HttpServer(Held(), Limits(connections=4))
        with mock.patch.object(peers_module, "name", return_value="few"):
            _, idle = connect(server.service, server)
        connected(server, "many", "many", "many")
        ((_, taken),) = connected(server, "many")
        assert not taken
        assert not idle.closed

    asyncio.run(run())


def test_those_who_find_no_room_have_nobody_look_for_it_again_at_once():
    async def run():
        server = HttpServer(Held(), Limits(connections=4))
        now = [1.0]
        server.turns.clock = lambda: now.append(now[-1] + 0.01) or now[-1]
        looked = []
        with mock.patch.object(Connection, "unused", property(looked.append)):
            connected(server, *["many"] * 4)
            assert [taken for _, taken in connected(server, *["many"] * 4)] == [False] * 4
            assert len(looked) <= 8
            assert connected(server, "few")[0][1]  # which has fewer

    asyncio.run(run())


FOLLOW = b"GET /v2/logs?follow=true&lines=0 HTTP/1.1\r\nHost: x\r\n\r\n"


async def until(done):
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError


async def following(server):
    """A connection that follows the log."""
    connection, transport = connect(server.service, server)
    connection.data_received(FOLLOW)
    await until(lambda: transport.written)
    return connection, transport


async def end(*connections):
    for connection in connections:
        connection.connection_lost(None)
        if connection._tasks:
            await asyncio.wait(connection._tasks)


def test_those_who_follow_the_log_make_room_before_those_who_ask_models():
    async def run():
        server = HttpServer(Service(), SMALL)
        at_work, work_transport = connect(server.service, server)
        at_work.data_received(infer([1.0])[:20])
        follower, follower_transport = await following(server)
        newest, transport = connect(server.service, server)
        assert follower_transport.closed
        assert not work_transport.closed
        newest.data_received(infer([2.0]))
        assert [status for status, _, _ in replies(transport.written)] == [200]
        await end(follower)

    asyncio.run(run())


def test_few_follow_the_log_and_the_first_ends_for_another(monkeypatch):
    monkeypatch.setattr(logs, "MAX_FOLLOWERS", 2)

    async def run():
        server = HttpServer(Service())
        followers = [await following(server) for _ in range(3)]
        await until(lambda: followers[0][0].idle)
        assert followers[0][1].written.endswith(b"\r\n0\r\n\r\n")
        assert [connection.idle for connection, _ in followers] == [True, False, False]
        assert followers[0][0].unused
        server.service.logs.end_followers()
        await until(lambda: all(connection.idle for connection, _ in followers))
        await end(*(connection for connection, _ in followers))

    asyncio.run(run())


def test_clients_who_do_not_read_their_answers_make_room():
    async def run():
        server = HttpServer(Service(), SMALL)
        clients = [connect(server.service, server) for _ in range(2)]
        for connection, transport in clients:
            connection.data_received(infer([1.0]))
            transport.unread = 100
            connection.pause_writing()
        newest, transport = connect(server.service, server)
        assert [transport.closed for _, transport in clients] == [True, False]
        newest.data_received(infer([2.0]))
        assert [status for status, _, _ in replies(transport.written)] == [200]

    asyncio.run(run())
