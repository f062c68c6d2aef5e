"""The daemon as a whole, with a fake server: its start, restart and end, and what stays of groups."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemlet.daemon import address, autostart
from gemlet.daemon.autostart import log_tail
from gemlet.daemon.connection import Connection
from gemlet.errors import DaemonUnreachable
from tests.waiting import eventually


def test_a_second_daemon_is_told_the_pid_of_the_first(start_daemon, tmp_path):
    start_daemon()
    done = subprocess.run(
        [sys.executable, "-c", SECOND_DAEMON, str(tmp_path)], capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 3, done.stderr
    assert f"(pid {os.getpid()})" in done.stdout


SECOND_DAEMON = """
import sys, pathlib
from gemlet.daemon.address import Endpoint
from gemlet.daemon.lock import AlreadyRunning, DirectoryLock
try:
    DirectoryLock(Endpoint(pathlib.Path(sys.argv[1]), "user")).__enter__()
except AlreadyRunning as error:
    print(error)
    sys.exit(3)
"""


def test_nobody_else_can_open_the_lock_and_so_hold_it(start_daemon, tmp_path):
    lock = address.Endpoint(tmp_path, "system").lock
    lock.touch(0o644)  # as earlier versions left it
    start_daemon(shared=True, kind="system")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_stale_sockets_are_removed_but_no_files(start_daemon, tmp_path):
    import socket

    for name in ("api.sock", "gemlet.sock"):
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stale.bind(str(tmp_path / name))
        stale.close()
    with pytest.raises(DaemonUnreachable):
        Connection(address.Endpoint(tmp_path, "user"))
    assert start_daemon().call("ping")


def test_groups_survive_a_restart(start_daemon, tmp_path):
    first = start_daemon()
    first.call("join", group="team", limits={"min": 0.3, "memory": 1 << 30})
    first.stop()
    second = start_daemon()
    assert second.server.groups["team"]["min"] == 0.3
    assert second.server.groups["team"]["memory"] == 1 << 30
    assert second.groups()["team"]["owner"] == os.getuid()


def test_groups_are_written_once_the_disk_has_room_again(start_daemon, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon()
    state, full = daemon.endpoint.state, []
    with monkeypatch.context() as disk:

        def write(path, content, **_):
            full.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")

        disk.setattr("gemlet.whole_file.write", write)
        joined = daemon.call("join", group="team", limits={"memory": 1 << 30})
        changed = daemon.call("set", group="team", limits={"memory": 1 << 30})
        for answer in (joined, changed):  # it goes on, and says so
            assert "team is in force, and not written down" in answer["warnings"][0]["message"]
            assert "No space left" in answer["warnings"][0]["message"]
        eventually(lambda: full.count(state) > 5)
        assert "No space left" in daemon.call("status")["daemon"]["state_error"]
    eventually(state.exists)
    assert "team" in state.read_text()
    eventually(lambda: daemon.call("status")["daemon"]["state_error"] is None)
    assert not [w for w in daemon.call("join", group="team")["warnings"] if "written down" in w["message"]]
    assert sum("groups.json cannot be written" in record.message for record in caplog.records) <= 1
    monkeypatch.undo()
    daemon.stop()
    assert start_daemon().server.groups["team"]["memory"] == 1 << 30


def test_a_damaged_state_file_does_not_matter(start_daemon, tmp_path):
    (tmp_path / "groups.json").write_bytes(b'[{"spec": \xff')
    assert start_daemon().call("ping")


def test_idle_exit(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon(idle_exit=0.2)
    daemon.thread.join(60)
    assert not daemon.thread.is_alive()


def test_no_idle_exit_while_a_launcher_lives(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon()
    daemon.call("join", group="team")  # the launcher is this process
    # Only now, or a daemon of a busy machine ends before it is joined.
    daemon.service.options = replace(daemon.service.options, idle_exit=0.2)
    time.sleep(0.5)
    assert daemon.call("ping")


def test_a_group_goes_after_its_launcher(start_daemon, monkeypatch, tmp_path):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon()
    script = (
        "import sys, pathlib;"
        "from gemlet.daemon.address import Endpoint; from gemlet.daemon.connection import Connection;"
        "Connection(Endpoint(pathlib.Path(sys.argv[1]), 'user')).call('join', group='team')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=20)
    assert "team" in daemon.groups()
    daemon.service.book.entries["team"].linger = 0.1
    eventually(lambda: "team" not in daemon.groups())


def test_a_starter_waits_for_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "start.lock")
    with autostart._only_starter(tmp_path / "start.lock"):
        pass


def test_log_tail(tmp_path, monkeypatch):
    log = tmp_path / "daemon.log"
    assert "cannot be read" in log_tail(log)
    os.mkfifo(log)
    assert "not a regular file" in log_tail(log)
    log.unlink()
    log.write_text("")
    assert "is empty" in log_tail(log)
    with monkeypatch.context() as changed:
        changed.setattr(autostart.os, "statvfs", lambda _: SimpleNamespace(f_blocks=1, f_bavail=0))
        assert "full disk" in log_tail(log)
    log.write_text("\n".join(f"line {n}" for n in range(20)))
    assert "line 19" in log_tail(log)
    assert "line 3" not in log_tail(log)


def test_the_tail_of_a_log_begins_with_the_first_of_the_last_errors(tmp_path):
    log = tmp_path / "daemon.log"
    errors = "".join(f"error: key {n}\n\nhint: write it\n\n" for n in range(4))
    log.write_text("error: of before\n2026-01-01 12:00:00 INFO serving\n" + errors)
    _, *lines = [line.strip() for line in log_tail(log).splitlines()]
    assert lines == errors.splitlines()
