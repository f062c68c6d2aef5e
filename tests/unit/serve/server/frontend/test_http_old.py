"""Clients of HTTP/1.0, as proxies are by default: they read to the end of the connection, unless they are told."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.serve.stand_in import Service, connect, replies

LIVE = b"GET /v2/health/live HTTP/1.%d\r\nHost: x\r\n%s\r\n"


@pytest.mark.parametrize(
    ("minor", "asked", "told", "closed"),
    [
        (0, b"", "close", True),
        (0, b"Connection: Keep-Alive\r\n", "keep-alive", False),
        (0, b"Connection: close\r\n", "close", True),
        (1, b"", None, False),
        (1, b"Connection: close\r\n", "close", True),
    ],
)
def test_a_client_is_told_whether_its_connection_goes_on(minor, asked, told, closed):
    async def run():
        connection, transport = connect(Service())
        connection.data_received(LIVE % (minor, asked))
        for _ in range(10):
            await asyncio.sleep(0)
        ((status, headers, body),) = replies(transport.written)
        assert (status, body) == (200, b'{"live":true}')
        assert headers.get("Connection") == told
        assert transport.closed == closed

    asyncio.run(run())


def test_the_log_is_followed_without_chunks():
    async def run():
        service = Service()
        service.logs.attach(asyncio.get_running_loop())
        connection, transport = connect(service)
        connection.data_received(b"GET /v2/logs?follow&lines=0 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0)
        service.logs.end_followers()
        for _ in range(10):
            await asyncio.sleep(0)
        head, _, body = bytes(transport.written).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert b"Connection: close" in head
        assert body == b""
        assert transport.closed

    asyncio.run(run())
