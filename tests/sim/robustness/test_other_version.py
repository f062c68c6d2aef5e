"""An upgrade in the middle: a hook and a daemon of different versions refuse each other, and the program runs on."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.robustness.hurt_machine import Machine, Served

OLD = wire.VERSION - 1
ANSWERS = {
    "welcome of its version": wire.pack(wire.WELCOME, version=OLD, status=wire.OK, group=b"g"),
    "refusal of its version": wire.pack(wire.WELCOME, version=OLD, status=wire.MISMATCH, text=b"I speak version 2"),
    "shorter messages": wire.pack(wire.WELCOME, version=OLD)[:512],
    "longer messages": wire.pack(wire.WELCOME, version=OLD) + bytes(256),
    "no answer": b"",
}


@pytest.fixture
def old_daemon(machine: Machine) -> Iterator[Callable[[bytes], None]]:
    """Listens where the hook connects, gives the answer to every first message and hangs up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(machine.socket)
    listener.listen()
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> None:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(4096)
                        connection.send(answer)

        threads.append(threading.Thread(target=serve))
        threads[0].start()

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_program_runs_on_under_an_old_daemon(
    machine: Machine, old_daemon: Callable[[bytes], None], answer: str
) -> None:
    old_daemon(ANSWERS[answer])
    code, out, err = machine.start("g", "work", 0.1).end()
    assert code == 0, (out, err)
    said = [line for line in err.splitlines() if line]
    assert len(said) == 2, err
    assert "is of another version of gemlet than this program's hook" in said[0]
    assert "running without limits" in said[0]
    assert "`gemlet stop --simulate`" in said[1]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_strict_program_does_not(machine: Machine, old_daemon: Callable[[bytes], None], answer: str) -> None:
    old_daemon(ANSWERS[answer])
    running = machine.start("g", "work", 0.1, GEMLET_STRICT="1")
    assert running.stderr is not None
    assert "trying for 10 s, then refusing to run" in running.stderr.readline()


def test_the_daemon_says_no_to_an_old_hook_and_serves_others(served: Served) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.settimeout(60)
        old.connect(served.machine.socket)
        old.send(wire.pack(wire.HELLO, version=OLD, group=b"g"))
        fields = wire.MESSAGE.unpack(old.recv(4096))
        assert fields[2] == wire.WELCOME
        assert fields[5] == wire.MISMATCH
        assert f"the hook version {OLD}" in fields[-1].rstrip(b"\0").decode()
        assert old.recv(4096) == b""
    assert served.machine.start("g", "work", 0.1).end()[0] == 0
