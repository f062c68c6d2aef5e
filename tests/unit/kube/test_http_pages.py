"""The agent's pages, asked by somebody else's client."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request

import pytest

from gemlet.kube import http_pages
from gemlet.kube.http_pages import Page


async def metrics():
    return Page("gemlet_node_shares 1\n" * 10_000)


async def broken():
    return Page("no daemon\n", 503)


def with_pages(scenario):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def whole():
        serving = asyncio.create_task(http_pages.serve({"/metrics": metrics, "/healthz": broken}, port))
        try:
            async with asyncio.timeout(120):
                while True:
                    try:
                        await asyncio.to_thread(scenario, port)
                        break
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.01)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(whole())


def ask(port, path, method="GET"):
    socket.create_connection(("127.0.0.1", port)).close()  # ConnectionRefusedError until it serves
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("path", "method", "status", "begin"),
    [
        ("/metrics", "GET", 200, "gemlet_node_shares 1\n"),
        ("/metrics?a=b", "GET", 200, "gemlet"),
        ("/healthz", "GET", 503, "no daemon"),
        ("/secrets", "GET", 404, "no such page"),
        ("/metrics", "POST", 405, "only GET"),
    ],
)
def test_pages_are_found_by_their_path(path, method, status, begin):
    def scenario(port):
        seen, text = ask(port, path, method)
        assert seen == status
        assert text.startswith(begin)

    with_pages(scenario)


def test_nonsense_closes_the_connection_and_nothing_else():
    def scenario(port):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"\x00\xff nonsense\r\n\r\n")
            assert client.recv(100) == b""
        assert ask(port, "/metrics")[0] == 200

    with_pages(scenario)
