"""Hooks and daemons of different versions: one apart is served, and what is not is said, with what to do about it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.other_hooks import other_hook
from tests.sim.robustness.hurt_machine import eventually
from tests.unit.server import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.robustness.hurt_machine import Machine, Served

OLD = wire.OLDEST - 1
ANSWERS = {
    "welcome of its version": wire.pack(wire.WELCOME, version=OLD, status=wire.OK, group=b"g"),
    "refusal of its version": wire.pack(wire.WELCOME, version=OLD, status=wire.MISMATCH, text=b"I speak version 2"),
    "refusal of a later version": wire.pack(wire.WELCOME, version=wire.VERSION + 1, status=wire.MISMATCH),
    "shorter messages": wire.pack(wire.WELCOME, version=OLD)[:512],
    "longer messages": wire.pack(wire.WELCOME, version=OLD) + bytes(256),
    "no answer": b"",
}

SAID = {
    "welcome of its version": ("an older", "`gemlet daemon --simulate --take-over`"),
    "refusal of its version": ("an older", "`gemlet daemon --simulate --take-over`"),
    "refusal of a later version": ("a newer", "that version's `gemlet run --simulate"),
    "shorter messages": ("another", "`gemlet stop --simulate`"),
    "longer messages": ("an older", "`gemlet daemon --simulate --take-over`"),
    "no answer": ("another", "`gemlet stop --simulate`"),
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
    which, hint = SAID[answer]
    assert f"is of {which} version of gemlet" in said[0]
    assert "than this program's hook" in said[0]
    assert "running without limits" in said[0]
    assert hint in said[1]


def test_a_daemon_that_is_killed_before_it_answers_is_not_of_another_version(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(machine.socket)
        listener.listen()
        running = machine.start("g", "work", 0.1)
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            listener.close()  # as a kill does, with all that it has open
    code, out, err = running.end()
    assert code == 0, (out, err)
    assert "no daemon at" in err
    assert "version" not in err


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


@pytest.mark.timeout(600)
def test_a_hook_of_the_version_before_has_all_its_limits(served: Served) -> None:
    served.server.set_group("g", min=0.0, memory=600 << 20)
    hook = {"LD_PRELOAD": str(other_hook("older"))}
    running = served.machine.start("g", "work", 60, 50, **hook)
    eventually(lambda: running.rounds() > 3)
    assert served.used("g") == (500 + 50) << 20
    refused = served.machine.start("g", "work", 60, 50, **hook)
    code, _, err = refused.end()
    assert code != 0
    assert "would pass the 600.0 MiB limit of group 'g'" in err
    running.kill()
    assert running.end()[2] == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strict", [False, True])
def test_a_hook_of_a_later_version_says_what_to_do(served: Served, strict: bool) -> None:
    changes = {"LD_PRELOAD": str(other_hook("newer"))} | ({"GEMLET_STRICT": "1"} if strict else {})
    running = served.machine.start("g", "work", 0.1, **changes)
    assert running.stderr is not None
    said = [running.stderr.readline(), running.stderr.readline()]
    assert f"of an older version of gemlet ({wire.VERSION}) than this program's hook ({wire.VERSION + 1})" in said[0]
    assert ("refusing to run" if strict else "running without limits") in said[0]
    assert "`gemlet daemon --take-over`" in said[1].replace(" --simulate", "")
    assert strict or running.end()[0] == 0
