"""A daemon at which others call without end."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time

import pytest

from gemlet import paths
from gemlet.daemon import address, autostart
from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection, accepts, connect
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


@pytest.fixture
def system_and_user(tmp_path, monkeypatch):
    """Endpoints without daemons, and which of them were started."""
    system, user = (Endpoint(tmp_path / kind, kind) for kind in ("system", "user"))
    listeners, started = [], []

    def listen(endpoint: Endpoint, **_: object) -> None:
        started.append(endpoint)
        listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listeners[-1].bind(str(endpoint.api))
        listeners[-1].listen()

    system.directory.mkdir()
    monkeypatch.setattr(autostart, "start", listen)
    yield system, user, started, listen
    for listener in listeners:
        listener.close()


def test_the_systems_daemon_that_was_killed_is_waited_for(system_and_user):
    """One of the user's own beside it would promise the same device once more."""
    system, user, started, listen = system_and_user
    system.lock.write_text("4711\n")
    back = threading.Timer(0.3, listen, [system])
    back.start()
    with autostart.find_or_start([system, user]) as daemon:
        assert daemon.endpoint == system
        assert daemon.in_place_of is None
    assert started == [system]


def test_the_systems_daemon_that_does_not_come_back_is_missed(system_and_user, monkeypatch):
    system, user, started, _ = system_and_user
    monkeypatch.setattr(autostart, "BACK_SECONDS", 0.1)
    system.lock.write_text("4711\n")
    with autostart.find_or_start([system, user]) as daemon:
        assert daemon.in_place_of == system
    assert started == [user]


@pytest.mark.parametrize("ended", ["never there", "by itself"])
def test_nobody_waits_for_one_that_is_not_to_come_back(system_and_user, monkeypatch, ended):
    system, user, _, _ = system_and_user
    monkeypatch.setattr(autostart, "BACK_SECONDS", 60.0)
    if ended == "by itself":
        system.lock.write_text("")
    began = time.monotonic()
    with autostart.find_or_start([system, user]) as daemon:
        assert daemon.endpoint == user
        assert daemon.in_place_of is None
    assert time.monotonic() - began < 10


def test_the_systems_daemon_needs_no_directory_of_the_users_own(system_and_user, tmp_path, monkeypatch):
    """Another user may have taken the name of that directory, and a full or read-only disk has no room for it."""
    system, _, started, listen = system_and_user
    taken = tmp_path / "taken"
    taken.touch()
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(taken))
    monkeypatch.setattr(paths, "SYSTEM_RUNTIME_DIR", str(system.directory))
    with pytest.raises(DaemonUnreachable, match=f"cannot create {taken}"):
        connect(address.candidates())
    with pytest.raises(DaemonUnreachable, match=f"cannot create {taken}") as error:
        autostart.find_or_start(address.candidates())
    assert error.value.hint == "set GEMLET_RUNTIME_DIR to a directory you may write to"
    assert started == []
    system.lock.write_text("4711\n")
    back = threading.Timer(0.3, listen, [system])
    back.start()
    with autostart.find_or_start(address.candidates()) as daemon:
        assert daemon.endpoint == system
    with connect(address.candidates()) as daemon:
        assert daemon.endpoint == system


def test_nobody_looks_for_a_daemon_where_another_user_may_pose_as_one(system_and_user, tmp_path, monkeypatch):
    _, user, started, listen = system_and_user
    session = tmp_path / "session"
    user = Endpoint(session / "gemlet", "user")
    user.directory.mkdir(parents=True)
    listen(user)
    monkeypatch.delenv("GEMLET_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    session.chmod(0o700)
    user.directory.chmod(0o777)
    with pytest.raises(DaemonUnreachable, match="other users can write"):
        connect(address.candidates())
    with pytest.raises(DaemonUnreachable, match="other users can write"):
        autostart.find_or_start(address.candidates())
    assert not accepts(address.candidates()[-1])
    assert started == [user]
    user.directory.chmod(0o700)
    connect(address.candidates()).close()


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
