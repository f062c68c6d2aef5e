"""Descriptors of the processes that ask for groups: no process and no user takes them all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gemlet.daemon import launchers
from gemlet.daemon.launchers import Launchers
from gemlet.daemon.processes import Peer
from tests.unit.daemon.test_groups import Process

ANA, LUIS, OWNER = 70001, 70002, 70003


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_takes_one_descriptor_however_often_it_asks(start_daemon):
    daemon = start_daemon()
    with daemon.connect() as connection:
        connection.call("join", group="g")
        before = descriptors()
        for number in range(30):
            connection.call("join", group=f"g{number % 3}")
        assert descriptors() == before


def test_a_descriptor_goes_with_the_last_who_holds_it():
    known, before = Launchers(owner=OWNER), descriptors()
    held = [known.of(Peer(os.getpid(), ANA)) for _ in range(2)]
    assert descriptors() == before + 1
    held.pop()
    assert descriptors() == before + 1
    held.pop()
    assert descriptors() == before


def test_another_process_of_the_same_pid_is_another_launcher():
    made = []

    def opened(_pid):
        made.append(Process())
        return made[-1]

    known = Launchers(owner=OWNER, opened=opened)
    first = known.of(Peer(7, ANA))
    assert known.of(Peer(7, ANA)) is first
    first.running = False
    assert known.of(Peer(7, ANA)) is made[1]


def test_a_process_that_is_gone():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert Launchers(owner=OWNER).of(Peer(process.pid, ANA)) is None


def test_a_daemon_after_this_one_finds_them_again():
    with subprocess.Popen(["sleep", "1000"]) as process:
        known = Launchers(owner=OWNER)
        (told,) = known.told([known.of(Peer(process.pid, ANA)), Process()])
        assert (told.pid, told.uid) == (process.pid, ANA)
        found = Launchers(owner=OWNER).back(told)
        assert found.alive()
        assert Launchers(owner=OWNER, started=lambda _pid: told.started + 1).back(told) is None
        process.kill()
    assert not found.alive()
    assert Launchers(owner=OWNER).back(told) is None
    assert known.told([]) == []


def test_nobody_takes_all_places(monkeypatch):
    monkeypatch.setattr(launchers, "MAX_LAUNCHERS", 32)
    known, pids, held = Launchers(owner=OWNER, opened=lambda _pid: Process()), iter(range(1000)), []

    def take(uid):
        found = [launcher for _ in range(40) if (launcher := known.of(Peer(next(pids), uid)))]
        held.extend(found)
        return len(found)

    assert take(ANA) == 15
    assert take(LUIS) >= 7
    assert take(OWNER) + take(0) == 32 - 15 - 8
    held.clear()
    assert take(ANA) == 15
