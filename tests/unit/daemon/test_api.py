"""The API socket against every kind of client, over a real socket, with a fake server behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gemlet.daemon import protocol
from gemlet.daemon.processes import Peer
from gemlet.errors import DaemonUnreachable, Refused


def raw(daemon, data: bytes) -> list[dict]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(daemon.endpoint.api))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return [json.loads(line) for line in received.splitlines()]


def test_ping(start_daemon):
    assert start_daemon().call("ping") == {"pid": os.getpid(), "simulated": False}


def test_a_request_without_its_end_is_answered(start_daemon):
    [answer] = raw(start_daemon(), b'{"v":1,"op":"status"}')
    assert not answer["ok"]
    assert "no end of line" in answer["error"]["message"]


def test_several_requests_on_one_connection(start_daemon):
    with start_daemon().connect() as connection:
        assert [connection.call("ping")["pid"] for _ in range(3)] == [os.getpid()] * 3


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b"{}",
        b'{"op":"status"}',
        b'{"v":1}',
        b'{"v":1,"op":"fly"}',
        b'{"v":"1","op":"status"}',
        b'{"v":2,"op":"status"}',
        b'{"v":1,"op":"join","limits":{"min":2}}',
        b'{"v":1,"op":"join","limits":{"memory":-1}}',
        b'{"v":1,"op":"join","limits":{"colour":"red"}}',
        b'{"v":1,"op":"join","group":"' + b"x" * 300 + b'"}',
        b'{"v":1,"op":"set"}',
        b'{"v":1,"op":"recorded","since":7776001}',
        b'{"v":1,"op":"recorded","until":1e9}',
        b'{"v":1,"op":"join","limits":{"users":[' + b",".join([b'"root"'] * 65) + b"]}}",
        b'{"v":1,"op":"join","limits":{"users":["' + b"x" * 257 + b'"]}}',
        b"\xff\xfe\x00",
        b"[" * 10000,
        b'{"v":1,"op":"explain","group":"\\ud800"}',
    ],
)
def test_malformed_requests_get_an_error_and_do_no_harm(start_daemon, line):
    daemon = start_daemon()
    answers = raw(daemon, line + b"\n" + b'{"v":1,"op":"ping"}\n')
    assert answers[0]["ok"] is False
    assert answers[0]["error"]["message"]
    assert answers[1]["ok"] is True


def test_a_request_that_never_ends_is_cut_off(start_daemon):
    daemon = start_daemon()
    answers = raw(daemon, b"x" * (protocol.MAX_REQUEST_BYTES + 1))
    assert "longer than" in answers[0]["error"]["message"]
    assert daemon.call("ping")


def test_a_client_that_hangs_up_in_the_middle(start_daemon):
    daemon = start_daemon()
    for data in (b"", b'{"v":1', b'{"v":1,"op":"status"}\n'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(daemon.endpoint.api))
            connection.sendall(data)
    assert daemon.call("ping")


def test_many_clients_at_once(start_daemon):
    daemon = start_daemon()
    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(lambda _: daemon.call("status")["schema"] == protocol.STATUS_SCHEMA, range(200)))


def test_a_connection_too_many_is_told_so(start_daemon, monkeypatch):
    daemon = start_daemon()
    assert daemon.call("ping")
    time.sleep(0.05)  # the daemon sees that earlier connections are closed
    monkeypatch.setattr("gemlet.daemon.api.MAX_CONNECTIONS", 2)
    with daemon.connect() as first, daemon.connect() as second:
        assert first.call("ping")
        assert second.call("ping")
        with pytest.raises(Refused, match="too many"):
            daemon.call("ping")
    assert daemon.call("ping")


def test_nobody_takes_all_connections(start_daemon, monkeypatch):
    daemon = start_daemon()
    monkeypatch.setattr("gemlet.daemon.api.MAX_CONNECTIONS", 10)
    monkeypatch.setattr("gemlet.daemon.api.FOR_ADMINISTRATORS", 2)
    asking = [0]
    monkeypatch.setattr("gemlet.daemon.api.caller", lambda _, **__: Peer(pid=1, uid=asking[0]))

    def open_as(uid: int, stack: contextlib.ExitStack) -> int:
        """How many connections a user gets, one after the other."""
        asking[0] = uid
        for count in range(20):
            try:
                assert stack.enter_context(daemon.connect()).call("ping")
            except Refused:
                return count
        return 20

    with contextlib.ExitStack() as stack:
        counts = [open_as(uid, stack) for uid in (70001, 70002, 70003)]
        assert counts[0] == 4  # half of what is not kept
        assert min(counts) >= 1
        assert sum(counts) <= 8
        assert open_as(0, stack) == 10 - sum(counts)


def test_a_defect_in_the_daemon_costs_one_answer(start_daemon, monkeypatch, caplog):
    daemon = start_daemon()
    monkeypatch.setattr("gemlet.daemon.answers.explain", lambda *_: 1 / 0)
    with pytest.raises(Refused, match="defect"):
        daemon.call("explain", group="x")
    assert daemon.call("ping")


def test_sockets_of_a_user_are_private(start_daemon):
    daemon = start_daemon()
    for path in (daemon.endpoint.api, daemon.endpoint.clients):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_sockets_of_a_system_daemon_are_open_to_all(start_daemon):
    daemon = start_daemon(shared=True, kind="system")
    for path in (daemon.endpoint.api, daemon.endpoint.clients):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_shutdown_ends_it_and_leaves_no_socket(start_daemon):
    daemon = start_daemon()
    daemon.call("shutdown")
    daemon.thread.join(60)
    assert not daemon.thread.is_alive()
    assert not daemon.endpoint.api.exists()
    assert not daemon.endpoint.clients.exists()
    assert not daemon.server.running
    with pytest.raises(DaemonUnreachable):
        daemon.connect()


def test_metrics(start_daemon):
    assert start_daemon().call("metrics") == "metric 1\n"


def test_threads_are_not_left_behind(start_daemon):
    daemon = start_daemon()
    daemon.stop()
    assert daemon.thread not in threading.enumerate()
