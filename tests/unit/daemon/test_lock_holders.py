"""A lock that is held by a process which could only read the file is no daemon's, and keeps none out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gemlet.daemon import lock
from gemlet.daemon.address import Endpoint
from gemlet.daemon.lock import AlreadyRunning, DirectoryLock
from gemlet.daemon.lock_holders import locked_in_place_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDS = """
import fcntl, os, socket, struct, sys
writes = sys.argv[2] == "writes"
lock = os.open(sys.argv[1], os.O_RDWR if writes else os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
if writes:
    os.pwrite(lock, b"%d        " % os.getpid(), 0)
if sys.argv[2] == "reads twice":
    fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    fcntl.flock(lock, fcntl.LOCK_UN)
if sys.argv[2] == "hides":  # in a message to itself
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"it"], [lock])
    os.close(lock)
print("held", flush=True)
sys.stdin.read()
"""


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


@pytest.mark.parametrize("how", ["reads", "reads twice", "hides"])
def test_root_in_a_container_keeps_no_daemon_out(endpoint: Endpoint, how: str) -> None:
    """It has the directory mounted for reading."""
    with held(endpoint.lock, how), DirectoryLock(endpoint):
        assert endpoint.lock.read_text() == f"{os.getpid()}\n"
        assert endpoint.lock.stat().st_mode & 0o777 == 0o600
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            DirectoryLock(endpoint).__enter__()
        assert [path.name for path in endpoint.directory.iterdir()] == [endpoint.lock.name]


@pytest.mark.parametrize("how", ["reads", "reads twice", "hides"])
def test_nor_by_how_many_files_are_open(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Nobody looks at them all: there may be millions."""
    looked_at: list[Path] = []
    monkeypatch.setattr("gemlet.daemon.lock_holders._said_of", lambda file: looked_at.append(file) or {})
    with held(endpoint.lock, how), DirectoryLock(endpoint):
        assert looked_at == []


def test_a_daemon_does(endpoint: Endpoint) -> None:
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with DirectoryLock(endpoint):
            os.write(ready[1], b"!")
            os.close(done[1])
            os.read(done[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"!"
    with pytest.raises(AlreadyRunning, match=f"pid {child}"):
        DirectoryLock(endpoint).__enter__()
    for end in (*ready, *done):
        os.close(end)
    assert os.waitpid(child, 0)[1] == 0
    with DirectoryLock(endpoint):
        assert endpoint.lock.read_text() == f"{os.getpid()}\n"


def test_so_does_one_of_before_that_has_it_by_flock_alone(endpoint: Endpoint) -> None:
    with held(endpoint.lock, "writes"), pytest.raises(AlreadyRunning):
        DirectoryLock(endpoint).__enter__()


def test_who_takes_over_from_it_keeps_others_out(endpoint: Endpoint) -> None:
    descriptor = os.open(endpoint.lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with DirectoryLock(endpoint, descriptor) as taken:
        os.close(descriptor)
        with pytest.raises(AlreadyRunning):
            DirectoryLock(endpoint).__enter__()
        taken.own()


def test_one_that_was_faster_is_not_displaced(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the lock in the hands of another."""
    faster: list[DirectoryLock] = []

    def meanwhile(path: Path, descriptor: int) -> int | None:
        monkeypatch.setattr(lock, "locked_in_place_of", locked_in_place_of)
        faster.append(DirectoryLock(endpoint).__enter__())
        return locked_in_place_of(path, descriptor)

    with held(endpoint.lock, "reads twice"):
        monkeypatch.setattr(lock, "locked_in_place_of", meanwhile)
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            DirectoryLock(endpoint).__enter__()
        assert endpoint.lock.stat().st_ino == os.fstat(faster[0].descriptor).st_ino
        faster[0].__exit__(None, None, None)
