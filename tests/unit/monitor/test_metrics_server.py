"""The metrics over HTTP: any user of the machine can connect, to the process that decides who runs."""

from __future__ import annotations

import socket
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from gemlet.monitor import metrics_server
from gemlet.monitor.few_connections import MAX_CONNECTIONS
from tests.unit.monitor.status_example import example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemlet.daemon.status import Status


class Scene:
    def __init__(self) -> None:
        self.latest: Status | None = None
        self.server, self.thread = metrics_server.serve(lambda: self.latest, port=0)
        self.address: Any = self.server.server_address[:2]

    def ask(self) -> bytes:
        host, port = self.address
        content: bytes = urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60).read()
        return content


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join(60)


def test_served_over_http(scene: Scene) -> None:
    assert b"gemlet_group_share{" not in scene.ask()
    scene.latest = example()
    assert b"gemlet_group_share{" in scene.ask()


def test_connections_of_other_users_take_few_threads_and_keep_nobody_out(scene: Scene) -> None:
    """Each had a thread and a descriptor of the daemon's, for as long as it liked: no program could join any more."""
    scene.latest = example()
    before = threading.active_count()
    held = [socket.create_connection(scene.address, timeout=60) for _ in range(3 * MAX_CONNECTIONS)]
    for connection in held[::2]:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no more of it
    assert b"gemlet_group_share{" in scene.ask()
    assert held[0].recv(1) == b""  # it was the first to go
    assert threading.active_count() - before <= MAX_CONNECTIONS
    for connection in held:
        connection.close()


def test_connections_that_do_not_read_their_answers_keep_nobody_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "m" * (16 << 20)  # more than the system keeps for a connection
    scene.latest = example()
    monkeypatch.setattr(metrics_server, "KEPT_SECONDS", 3600.0)
    monkeypatch.setattr("gemlet.monitor.metrics.render", lambda _: text)
    monkeypatch.setattr("gemlet.monitor.metrics_server._Handler.timeout", 3600.0)
    held = [socket.create_connection(scene.address, timeout=60) for _ in range(MAX_CONNECTIONS)]
    for connection in held:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert connection.recv(1) == b"H"  # and no more of it
    assert scene.ask() == text.encode()
    for connection in held:
        connection.close()


def test_many_that_ask_cost_no_more_than_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.latest, made = example(), []
    monkeypatch.setattr(metrics_server, "KEPT_SECONDS", 3600.0)
    monkeypatch.setattr("gemlet.monitor.metrics.render", lambda status: made.append(status) or "metric 1\n")
    assert {scene.ask() for _ in range(5)} == {b"metric 1\n"}
    assert made == [scene.latest]


def test_a_connection_without_a_thread_leaves_its_place_to_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        for _ in range(2 * MAX_CONNECTIONS):
            with socket.create_connection(scene.address, timeout=60) as connection:
                assert connection.recv(1) == b""
    scene.latest = example()
    assert b"gemlet_group_share{" in scene.ask()
