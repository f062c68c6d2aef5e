"""A system that has no thread left just now, or a defect: it costs what it concerns, and the daemon goes on."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from types import SimpleNamespace

import pytest

from gemlet.daemon import service, succession
from gemlet.daemon.aside import Aside
from gemlet.daemon.elder import Elder
from gemlet.daemon.users import Users
from gemlet.errors import DaemonError
from tests.unit.daemon.fakes import FakeServer
from tests.waiting import eventually

NO_THREAD = RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch):
    """No thread can be started until this is called."""

    def start(_):
        raise NO_THREAD

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        yield patched.undo


def test_work_aside_is_done_once_there_is_a_thread(no_threads):
    done = []
    aside = Aside("test")
    aside.do(lambda: done.append(1))
    assert not asyncio.run(aside.settle(0.01))
    no_threads()
    aside.do(lambda: done.append(2))
    assert asyncio.run(aside.settle(60.0))
    assert done == [1, 2]


def test_users_are_known_once_there_is_a_thread(no_threads):
    users = Users({7: "ana", "ana": 7}.get)
    asyncio.run(users.learn([7], patience=0.01))
    assert users.name_of(7) == "7"
    no_threads()
    asyncio.run(users.learn([7]))
    assert users.name_of(7) == "ana"


@pytest.mark.parametrize("error", [NO_THREAD, OSError("too many open files"), MemoryError()], ids=repr)
def test_a_task_that_fails_is_begun_anew(start_daemon, monkeypatch, caplog, error):
    monkeypatch.setattr(service, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(service, "HOUSEKEEPING_SECONDS", 0.01)
    caplog.set_level(logging.ERROR, logger="gemlet")
    daemon = start_daemon()
    failures, calls = [], []
    expire = daemon.service.book.expire

    def fails(*_):
        failures.append(1)
        raise error

    def works(*arguments):
        calls.append(1)
        return expire(*arguments)

    daemon.service.book.expire = fails
    eventually(lambda: len(failures) > 10)
    assert daemon.call("ping")
    assert len(caplog.records) == 1  # a minute, not one a failure
    daemon.service.book.expire = works
    eventually(lambda: calls)


def test_a_take_over_that_cannot_begin_leaves_the_daemon_as_it_was(monkeypatch):
    def no_thread(*_, **__):
        raise NO_THREAD

    async def live():
        one = Elder(FakeServer(), groups=list, leaving=lambda: None, stop=lambda: None)
        one.lock = SimpleNamespace(descriptor=0, yields=False)
        monkeypatch.setattr(asyncio, "to_thread", no_thread)
        with pytest.raises(DaemonError, match="can't start new thread"):
            await one.hand_over("/nowhere", pid=1)
        async with asyncio.timeout(60):
            await one.check_stays()

    asyncio.run(live())


def test_what_cannot_be_told_to_a_successor_starts_the_server_again():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    class Server(FakeServer):
        def hand_over(self):
            self.running = False
            return {"listeners": [], "ledgers": [], "callers": []}

    server = Server()
    with ours, theirs, pytest.raises(DaemonError):
        succession.give(ours, server, groups=[{"spec": {"name": "\udcff"}}], lock=theirs.fileno())
    assert server.running
