"""The agent's pages, asked by somebody else's client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import urllib.error
import urllib.request

import pytest

from gemlet.kube import http_pages
from gemlet.kube.http_pages import Page


async def metrics():
    return Page("gemlet_node_shares 1\n" * 10_000)


async def large():
    return Page("x" * 50_000_000)


async def broken():
    return Page("no daemon\n", 503)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def with_pages(scenario):
    pages = {"/metrics": metrics, "/large": large, "/healthz": broken}

    async def whole():
        async with asyncio.timeout(120):
            # What was free may be another test's by now.
            while not await served(scenario, pages, free_port()):
                pass

    asyncio.run(whole())


async def served(scenario, pages, port):
    """Whether the pages were there for the scenario: False where the port is taken."""
    serving = asyncio.create_task(http_pages.serve(pages, port))
    try:
        while not serving.done():
            try:
                await asyncio.to_thread(scenario, port)
                return True
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        with contextlib.suppress(OSError):
            serving.result()
        return False
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


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


def test_connections_without_a_request_make_room():
    def scenario(port):
        with contextlib.ExitStack() as idle:
            many = [idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(200)]
            for client in many[:100]:
                client.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert ask(port, "/metrics")[0] == 200
            for client in many[: 200 - http_pages.MOST_CONNECTIONS]:
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(100) == b""

    with_pages(scenario)


def unread(port):
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    client.recv(1)
    return client


def test_who_does_not_read_the_answer_ends(monkeypatch):
    for name in ("REQUEST_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(http_pages, name, 0.1)
    ended, answer = threading.Event(), http_pages._answer

    async def watched(*given):
        try:
            await answer(*given)
        except asyncio.CancelledError:
            ended.set()
            raise

    monkeypatch.setattr(http_pages, "_answer", watched)

    def scenario(port):
        with unread(port):
            assert ended.wait(60)

    with_pages(scenario)


def test_those_who_do_not_read_their_answers_make_room(monkeypatch):
    """Sixty-four who asked and did not read kept everybody else out, again and again."""
    monkeypatch.setattr(http_pages, "REQUEST_SECONDS", 3600)
    monkeypatch.setattr(http_pages, "MOST_CONNECTIONS", 3)

    def scenario(port):
        with contextlib.ExitStack() as those:
            for _ in range(http_pages.MOST_CONNECTIONS):
                those.enter_context(unread(port))
            assert ask(port, "/metrics")[0] == 200
            assert ask(port, "/healthz")[0] == 503

    with_pages(scenario)


def test_a_page_is_made_once_for_all_who_ask_at_a_time():
    """Any pod may ask for the metrics without end: each time the daemon was asked for its status, and the answers that
    the kubelet waits for came after that."""

    async def scenario():
        made, go_on = [], asyncio.Event()

        async def make():
            made.append(len(made))
            await go_on.wait()
            return Page(str(len(made)))

        page = http_pages.for_all(make, 3600.0)
        gone, *asking = [asyncio.create_task(page()) for _ in range(50)]
        await asyncio.sleep(0)
        gone.cancel()  # who asked first has hung up
        await asyncio.sleep(0)
        go_on.set()
        assert {await each for each in asking} == {Page("1")}
        assert await page() == Page("1")
        fresh = http_pages.for_all(make, 0.0)
        assert [await fresh(), await fresh()] == [Page("2"), Page("3")]

    asyncio.run(scenario())
