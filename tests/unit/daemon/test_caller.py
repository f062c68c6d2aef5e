"""Who asks: root of this machine, or root in a container, whom the kernel calls by the same uid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from gemlet.daemon.processes import NOBODY, Peer, caller, check_administrator
from gemlet.errors import Refused

CALL = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    if len(sys.argv) > 2 and os.fork() == 0:
        client.recv(1)
        os._exit(0)
    if len(sys.argv) == 2:
        client.recv(1)
"""
APART = ["unshare", "--pid", "--fork"]

as_root = pytest.mark.skipif(
    os.getuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run([*APART, "true"], check=False).returncode != 0,
    reason="only root can make pid namespaces",
)


@pytest.fixture
def called(tmp_path):
    """Who called, as the daemon takes it; the caller is there until then."""

    def call(*how: str, shared: bool, **more: bool) -> Peer:
        with socket.socket(socket.AF_UNIX) as listener:
            path = tmp_path / "s"
            listener.bind(str(path))
            listener.listen()
            gone = ["gone"] if more.get("gone") else []
            with subprocess.Popen([*how, sys.executable, "-c", CALL, str(path), *gone]) as program:
                if gone:
                    program.wait()
                connection, _ = listener.accept()
                with connection:
                    return caller(connection, shared=shared)

    return call


@pytest.mark.parametrize("shared", [True, False])
def test_a_program_beside_the_daemon_is_its_user(called, shared):
    found = called(shared=shared)
    assert (found.uid, found.contained) == (os.getuid(), False)
    check_administrator(found, "start MPS")


@as_root
def test_root_in_a_container_is_nobody_for_a_daemon_of_all(called):
    """It could have the daemon start a program of its choice outside of the container."""
    found = called(*APART, shared=True)
    assert (found.uid, found.contained) == (NOBODY, True)
    with pytest.raises(Refused, match="nobody may start MPS from within a container"):
        check_administrator(found, "start MPS")


@as_root
def test_in_a_container_of_its_user_a_program_is_that_user_and_administers_nothing(called):
    found = called(*APART, shared=False)
    assert (found.uid, found.contained) == (os.getuid(), True)
    with pytest.raises(Refused, match="from within a container"):
        check_administrator(found, "stop the daemon")


def test_one_that_has_ended_administers_nothing(called):
    """Its child may have the connection, and another process its number."""
    assert called(shared=True, gone=True).contained


def test_a_user_needs_no_closer_look(monkeypatch):
    monkeypatch.setattr("gemlet.daemon.processes.peer_of", lambda _: Peer(1, 12345))
    monkeypatch.setattr("gemlet.daemon.processes._is_near", lambda *_: pytest.fail("looked"))
    with socket.socket() as connection:
        assert caller(connection, shared=True) == Peer(1, 12345)
