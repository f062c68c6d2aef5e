"""A daemon at which others call without end."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time

import pytest

from gemlet.daemon import autostart
from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection, accepts
from gemlet.errors import DaemonError, DaemonUnreachable


@pytest.fixture
def crowded(tmp_path):
    """A listener that has as many callers waiting as it may have, and its endpoint."""
    endpoint = Endpoint(tmp_path, "user")
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(endpoint.api))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                caller = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                caller.setblocking(False)
                caller.connect(str(endpoint.api))
        yield listener, endpoint


def test_a_caller_waits_for_its_turn(crowded):
    listener, endpoint = crowded
    called = threading.Event()

    def call() -> None:
        Connection(endpoint, timeout=60.0).close()
        called.set()

    threading.Thread(target=call, daemon=True).start()
    assert not called.wait(0.1)
    while not called.wait(0.01):
        listener.accept()[0].close()


def test_one_that_has_no_turn_starts_no_daemon_of_its_own(crowded, monkeypatch):
    _, endpoint = crowded
    monkeypatch.setattr(autostart, "start", lambda *_, **__: pytest.fail("a daemon was started"))
    monkeypatch.setattr(Connection.__init__, "__kwdefaults__", {"timeout": 0.1})
    with pytest.raises(DaemonError, match="does not answer") as error:
        autostart.find_or_start([endpoint])
    assert not isinstance(error.value, DaemonUnreachable)
    assert accepts(endpoint)


def test_signals_are_not_taken_for_its_turn(crowded):
    _, endpoint = crowded
    caught: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: caught.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        began = time.monotonic()
        with pytest.raises(DaemonError, match="does not answer"):
            Connection(endpoint, timeout=0.5)
        assert time.monotonic() - began > 0.4
        assert caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
