"""A lock that is held by a process which could only read the file is no daemon's, and keeps none out."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet.daemon import lock
from gemlet.daemon.address import Endpoint
from gemlet.daemon.lock import AlreadyRunning, DirectoryLock
from gemlet.daemon.lock_holders import no_daemon_holds

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDS = """
import fcntl, os, socket, sys
lock = os.open(sys.argv[1], os.O_RDONLY if sys.argv[2] != "writes" else os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
if sys.argv[2] == "hides":  # in a message to itself
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"it"], [lock])
    os.close(lock)
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can look at all processes")


def processes() -> list[Path]:
    """Root of a container may not look at all of them, as it runs the tests."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                with contextlib.suppress(FileNotFoundError):
                    next((entry / "fdinfo").iterdir(), entry / "stat").read_text()
                found.append(entry)
    return found


@pytest.fixture(autouse=True)
def everybody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemlet.daemon.lock_holders.sees_the_drivers_pids", lambda: True)
    monkeypatch.setattr("gemlet.daemon.lock_holders._processes", processes)


@contextlib.contextmanager
def held(path: Path, how: str) -> Iterator[None]:
    command = [sys.executable, "-c", HOLDS, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.stdin.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    made = Endpoint(tmp_path, "system")
    made.lock.write_text("4194000\n")  # of one that was killed
    return made


@pytest.mark.parametrize("how", ["reads", "hides"])
def test_root_in_a_container_keeps_no_daemon_out(endpoint: Endpoint, how: str) -> None:
    """It has the directory mounted for reading."""
    with held(endpoint.lock, how), DirectoryLock(endpoint):
        assert endpoint.lock.read_text() == f"{os.getpid()}\n"
        assert endpoint.lock.stat().st_mode & 0o777 == 0o600
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            DirectoryLock(endpoint).__enter__()
        assert [path.name for path in endpoint.directory.iterdir()] == [endpoint.lock.name]


def test_a_daemon_does(endpoint: Endpoint) -> None:
    with held(endpoint.lock, "writes"), pytest.raises(AlreadyRunning, match="4194000"):
        DirectoryLock(endpoint).__enter__()


@pytest.mark.parametrize("how", ["namespace", "permission", "btrfs"])
def test_where_not_everybody_is_seen_it_may_be_a_daemon(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def refused() -> list[Path]:
        raise PermissionError

    if how == "namespace":
        monkeypatch.setattr("gemlet.daemon.lock_holders.sees_the_drivers_pids", lambda: False)
    elif how == "permission":
        monkeypatch.setattr("gemlet.daemon.lock_holders._processes", refused)
    else:
        monkeypatch.setattr("gemlet.daemon.lock_holders._place", lambda _: " 00:2a:257 ")
    with held(endpoint.lock, "reads"), pytest.raises(AlreadyRunning):
        DirectoryLock(endpoint).__enter__()


def test_one_that_was_faster_is_not_displaced(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the lock in the hands of another."""
    faster: list[DirectoryLock] = []

    def meanwhile(descriptor: int, _directory: Path) -> bool:
        monkeypatch.setattr(lock, "no_daemon_holds", no_daemon_holds)
        faster.append(DirectoryLock(endpoint).__enter__())
        return True

    with held(endpoint.lock, "reads"):
        monkeypatch.setattr(lock, "no_daemon_holds", meanwhile)
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            DirectoryLock(endpoint).__enter__()
        assert endpoint.lock.stat().st_ino == os.fstat(faster[0].descriptor).st_ino
        faster[0].__exit__(None, None, None)
