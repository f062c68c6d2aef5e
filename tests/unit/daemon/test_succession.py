"""What a daemon tells its successor, and how it starts one."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from gemlet.daemon import saved_groups, succession
from gemlet.daemon.elder import command
from gemlet.daemon.groups import Entry
from gemlet.daemon.launchers import Launchers
from gemlet.errors import DaemonError
from gemlet.model import GroupSpec
from tests.unit.daemon.fakes import FakeServer


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


@pytest.mark.parametrize("packet", [b"", b'{"kind": "lock", "form": 3}', b'{"kind": "news"}', b'{"kind": "end"}'])
def test_another_form_is_refused(packet):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(packet) if packet else ours.shutdown(socket.SHUT_WR)
        with pytest.raises(DaemonError, match="does not know"):
            receive(theirs)
