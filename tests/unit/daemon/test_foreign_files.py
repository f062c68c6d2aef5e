"""Nobody stalls the API by descriptors that come with a request, nor by leaving them unread."""

from __future__ import annotations

import os
import socket

import pytest

from tests.lingering import is_cut_off, let_go, send_lingering

PING = b'{"v":1,"op":"ping"}\n'


@pytest.fixture(params=["refused", "not refused"])
def daemon(start_daemon, monkeypatch, request):
    if request.param == "not refused":  # as by a kernel that cannot
        native = pytest.importorskip("gemlet._native", reason="the native module is not built")
        monkeypatch.setattr(native, "refuse_files", lambda _: False)
    yield start_daemon()
    let_go()  # before the daemon ends, which would wait for them where this fails


def connected(daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(str(daemon.endpoint.api))
    return connection


def answers(daemon) -> bool:
    with connected(daemon) as connection:
        connection.sendall(PING)
        return str(os.getpid()).encode() in connection.recv(4096)


def test_with_a_request(daemon):
    for _ in range(20):
        with connected(daemon) as hostile:
            if send_lingering(hostile, PING):
                assert is_cut_off(hostile)
    assert answers(daemon)


def test_behind_a_request(daemon):
    for _ in range(20):
        with connected(daemon) as hostile:
            hostile.sendall(PING)
            send_lingering(hostile, PING)
    assert answers(daemon)


def test_unread_behind_one_that_is_too_long(daemon):
    for _ in range(5):
        with connected(daemon) as hostile:
            try:
                hostile.sendall(b"x" * (1 << 18))
                send_lingering(hostile, PING)
            except OSError:
                pass  # the end was faster
    assert answers(daemon)


def test_out_of_band(daemon):
    for _ in range(5):
        with connected(daemon) as hostile:
            hostile.sendall(PING)
            hostile.send(b"x", socket.MSG_OOB)
            send_lingering(hostile, PING)
    assert answers(daemon)


def test_a_whole_conversation(daemon):
    with connected(daemon) as connection:
        for _ in range(3):
            connection.sendall(PING)
            assert connection.recv(4096).endswith(b"\n")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(4096) == b""


@pytest.mark.parametrize("before", [b"", PING[:-1], PING])
def test_with_what_is_out_of_band(daemon, before):
    for _ in range(10):
        with connected(daemon) as hostile:
            try:
                if before:
                    hostile.sendall(before)
                send_lingering(hostile, b"x", flags=socket.MSG_OOB)
                hostile.sendall(PING)
            except OSError:
                pass  # the end was faster
    assert answers(daemon)
