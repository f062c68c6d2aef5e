"""What a daemon tells its successor, and how it starts one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gemlet.daemon import saved_groups, succession
from gemlet.daemon.address import Endpoint
from gemlet.daemon.elder import command
from gemlet.daemon.group_entry import Entry
from gemlet.daemon.launchers import Launchers
from gemlet.devices.device import DeviceProcess
from gemlet.errors import DaemonError
from gemlet.model import GroupSpec
from tests.unit.daemon.fakes import FakeServer

BEYOND_SELECT = 1024  # descriptors


@pytest.mark.parametrize(
    ("argv", "started"),
    [
        (["python", "gemlet", "daemon", "--system"], ["python", "gemlet", "daemon", "--system", "--take-over"]),
        (["python", "gemlet", "daemon", "--take-over"], ["python", "gemlet", "daemon", "--take-over"]),
        (["python", "-m", "gemlet", "daemon", "--ready-fd", "5"], ["python", "-m", "gemlet", "daemon", "--take-over"]),
    ],
)
def test_the_successor_has_the_same_options(argv, started):
    assert command(argv) == started


def test_groups_that_the_configuration_does_not_tell(tmp_path):
    file = GroupSpec(name="file", max=0.5)
    entries = [
        Entry(spec=file, origin="configuration"),
        Entry(spec=GroupSpec(name="set", max=0.2), origin="configuration"),
        Entry(spec=GroupSpec(name="removed"), origin="configuration", leaving=True),
        Entry(spec=GroupSpec(name="run"), origin="run", owner=7),
    ]
    changed = [file, GroupSpec(name="set", max=0.9)]
    told = {g.spec.name: g for g in saved_groups.living(entries, changed, Launchers(owner=1))}
    assert set(told) == {"set", "removed", "run"}
    assert told["set"].configured == GroupSpec(name="set", max=0.9)
    assert told["removed"].origin == "run"  # programs that join it are not unlimited
    assert told["run"].owner == 7


def receive(channel):
    predecessor = succession.Predecessor(channel)
    succession._receive_all(predecessor)
    return predecessor


def test_what_is_sent_arrives_with_its_descriptors(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("lock", "listener", "ledger", "slot")}
    inodes = {name: os.fstat(fd).st_ino for name, fd in files.items()}
    slot = {"index": 3, "pid": 4, "fd": files["slot"], "who": "user 1", "administrator": False}
    ledger = {"device": b"d" * 16, "index": 0, "context_estimate": 1, "group": "g", "fd": files["ledger"]}

    class Server(FakeServer):
        def hand_over(self):
            return {
                "listeners": [{"path": "/s", "fd": files["listener"]}],
                "ledgers": [ledger | {"slots": [slot | {"contexts": 1, "untracked": 2**63}]}],
                "callers": [],
            }

    server, errors = Server(), []

    def give():
        try:
            succession.give(ours, server, groups=[{"spec": {"name": "g"}}], lock=files["lock"])
        except DaemonError as error:
            errors.append(error)

    giving = threading.Thread(target=give)
    giving.start()
    with receive(theirs) as p:
        assert os.fstat(p.lock).st_ino == inodes["lock"]
        assert {path: os.fstat(fd).st_ino for path, fd in p.listeners.items()} == {"/s": inodes["listener"]}
        (image,) = p.ledgers
        assert (image["device"], image["group"], os.fstat(image["fd"]).st_ino) == (b"d" * 16, "g", inodes["ledger"])
        assert image["slots"][0]["untracked"] == 2**63
        assert os.fstat(image["slots"][0]["fd"]).st_ino == inodes["slot"]
        assert p.groups == [{"spec": {"name": "g"}}]
        descriptors = list(p.descriptors)
    giving.join(60)
    assert len(errors) == 1  # the successor was left without `commit`
    assert server.running
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    for fd in files.values():
        os.close(fd)
    ours.close()


def test_a_successor_that_gave_up_is_not_left_alone():
    """The elder was stopped for longer than it waited."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = FakeServer()
    with ours, theirs:
        theirs.send(succession.READY)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(DaemonError, match="ended"):
            succession.give(ours, server, groups=[], lock=theirs.fileno())
    assert server.running


@pytest.fixture
def crowded():
    """What is opened from now on has a number that select(2) does not take, as where some hundred programs are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < BEYOND_SELECT + 100:
        pytest.skip("this machine allows no more descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], BEYOND_SELECT + 100), limits[1]))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) < BEYOND_SELECT:
            opened.callback(os.close, descriptor)
        opened.callback(os.close, descriptor)
        yield


@pytest.mark.usefixtures("crowded")
def test_one_takes_over_where_there_are_many_descriptors():
    """Once the daemon before has left, a successor that fails leaves the programs alone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    theirs.settimeout(30)
    server, errors = FakeServer(), []

    def hand_over():
        try:
            succession.give(ours, server, groups=[], lock=theirs.fileno())
            succession.leave(ours, server)
        except DaemonError as error:
            errors.append(error)

    elder = threading.Thread(target=hand_over)
    elder.start()
    with theirs, receive(theirs) as found:
        found.commit()
        with subprocess.Popen(["sleep", "60"]) as process, contextlib.closing(succession.Process(process.pid)) as seen:
            assert not seen.ended(within=0.0)
            process.kill()
            assert seen.ended(within=60.0)
        theirs.send(succession.DONE)
        elder.join(60)
    ours.close()
    assert not errors


class Asked(threading.Thread):
    """A request that is under way. ``error``: what came of it, if it failed."""

    def __init__(self, daemon, op, **arguments):
        super().__init__()
        self.error = None
        self._request = (daemon, op, arguments)
        self.start()

    def run(self):
        daemon, op, arguments = self._request
        try:
            daemon.call(op, **arguments)
        except DaemonError as error:
            self.error = error


@pytest.fixture
def leaving(monkeypatch):
    """Makes a daemon hand over, to nobody; the result ends that."""
    left, go = threading.Event(), threading.Event()

    def leave(channel, server):
        server.clients.clear()
        left.set()
        assert go.wait(60)

    monkeypatch.setattr(succession, "reach", lambda *_: socket.socket())
    monkeypatch.setattr(succession, "give", lambda *_, **__: None)
    monkeypatch.setattr(succession, "leave", leave)
    handing_over = []

    def begin(daemon):
        thread = threading.Thread(target=lambda: daemon.call("take_over", socket="/nowhere"))
        handing_over.append((daemon, thread))
        thread.start()
        assert left.wait(60)
        return go.set

    yield begin
    go.set()
    for daemon, thread in handing_over:
        thread.join(60)
        daemon.thread.join(60)
        daemon.server.stop()


def test_one_that_has_handed_over_takes_no_program_for_one_outside(start_daemon, leaving, monkeypatch):
    """It would stop or kill them, if that is its policy, while a slow successor keeps it waiting."""
    monkeypatch.setattr("gemlet.daemon.observer.sees_the_drivers_pids", lambda: True)
    daemon = start_daemon()
    daemon.call("join", group="g")
    daemon.server.add_client("g", pid=os.getpid())
    daemon.inventory.processes = (DeviceProcess(pid=os.getpid(), memory_used=7),)
    observer = daemon.service.observer
    end = leaving(daemon)
    asyncio.run_coroutine_threadsafe(observer.find_devices(), daemon.loop).result(60)
    assert not [event for event in daemon.service.events.after(0, 100) if event.kind == "outside"]
    end()


def test_one_that_has_handed_over_leaves_the_groups_to_the_successor(start_daemon, leaving):
    daemon = start_daemon()
    daemon.call("join", group="g", limits={"memory": 1 << 30})
    written = daemon.endpoint.state.read_text()
    end = leaving(daemon)
    del daemon.service.book.entries["g"]
    daemon.loop.call_soon_threadsafe(daemon.service.remember_groups)
    end()
    daemon.thread.join(60)
    assert daemon.endpoint.state.read_text() == written


@pytest.mark.parametrize(("op", "limits"), [("join", {}), ("set", {"limits": {"weight": 2.0}})])
def test_a_request_that_waits_while_another_daemon_takes_over_changes_nothing_here(
    start_daemon, leaving, monkeypatch, op, limits
):
    """The successor had the groups of before by then, and the client was told that it was done."""
    daemon = start_daemon()
    daemon.call("join", group="g")
    before = daemon.service.book.entries["g"].spec
    waits, answered = threading.Event(), asyncio.Event()

    async def learn(*_, **__):
        waits.set()
        await answered.wait()

    monkeypatch.setattr(daemon.service.users, "learn", learn)
    asked = Asked(daemon, op, group="new" if op == "join" else "g", **limits)
    assert waits.wait(60)
    end = leaving(daemon)
    daemon.loop.call_soon_threadsafe(answered.set)
    end()
    daemon.thread.join(60)
    asked.join(60)
    assert isinstance(asked.error, DaemonError)
    assert {name: entry.spec for name, entry in daemon.service.book.entries.items()} == {"g": before}


@pytest.mark.parametrize("packet", [b"", b'{"kind": "lock", "form": 3}', b'{"kind": "news"}', b'{"kind": "end"}'])
def test_another_form_is_refused(packet):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(packet) if packet else ours.shutdown(socket.SHUT_WR)
        with pytest.raises(DaemonError, match="does not know"):
            receive(theirs)


# As root of a container may that has the daemon's directory: to the kernel it is root, like the daemon.
INTRUDER = """
import json, os, socket, sys
lock = os.open("/dev/null", os.O_RDONLY)
channels = []
for _ in range(int(sys.argv[2])):
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.setblocking(False)
    try:
        channel.connect(sys.argv[1])
        form = {"kind": "lock", "form": int(sys.argv[3])}
        socket.send_fds(channel, [json.dumps(form).encode()], [lock])
        for item in ({"kind": "group", "group": {"spec": {"name": "theirs"}}}, {"kind": "end"}):
            channel.send(json.dumps(item).encode())
    except OSError:
        pass
    channels.append(channel)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("intruders", [0, 1, 40])
def test_only_the_daemon_that_was_asked_hands_over(tmp_path, intruders):
    endpoint = Endpoint(tmp_path, "system")
    asked = threading.Event()

    def elder(listener):
        connection, _ = listener.accept()
        with connection:
            path = json.loads(connection.recv(4096))["socket"]
            arguments = [sys.executable, "-c", INTRUDER, path, str(intruders), str(succession.FORM)]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as intruder:
                assert intruder.stdout.readline() == b"sent\n"
                with succession.reach(path, os.getpid()) as channel, Path(os.devnull).open() as lock:
                    succession._send(channel, {"kind": "lock", "form": succession.FORM}, lock.fileno())
                    succession._send(channel, {"kind": "group", "group": {"spec": {"name": "ours"}}})
                    succession._send(channel, {"kind": "end"})
                    asked.wait(60)
                intruder.stdin.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(endpoint.api))
        listener.listen()
        thread = threading.Thread(target=elder, args=(listener,))
        thread.start()
        try:
            with succession.take_over(endpoint) as found:
                assert found.groups == [{"spec": {"name": "ours"}}]
        finally:
            asked.set()
            thread.join(60)
