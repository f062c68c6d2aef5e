"""Contexts made while nobody knows what one takes: at a daemon that has measured none, in a group with a limit."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, Served, eventually, serving
from tests.unit.server.wire import CREATE_GROUP, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sim.robustness.hurt_machine import Machine, Running

native = pytest.importorskip("gemlet._native")
LIMIT = 2 * CONTEXT + 24 * MIB
OUT_OF_MEMORY = "2"
FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]  # the system call's number


@pytest.fixture
def unmeasured(machine: Machine) -> Iterator[Served]:
    with serving(machine) as made:
        yield made


@contextlib.contextmanager
def measuring(served: Served) -> Iterator[None]:
    """What the daemon does with each client that has contexts: it asks the driver."""
    end = threading.Event()

    def measure() -> None:
        while not end.wait(0.01):
            for client in served.clients():
                if client["contexts"]:
                    served.server.set_memory_of_processes(
                        served.uuid, [(client["pid"], client["contexts"] * CONTEXT, None)]
                    )

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def holder(served: Served, group: str = "g") -> RawClient:
    """A member of the group that has the turn, and does nothing."""
    client = RawClient(served.machine.socket, group, flags=CREATE_GROUP, own_process=True).attach(served.uuid)
    client.ledger.put("turn", client.slot + 1, size=4)
    return client


def has_context(program: Running) -> bool:
    """Waits until it has one, or was refused it."""
    if program.line() == "ready":
        return True
    _, _, err = program.end()
    assert OUT_OF_MEMORY in err
    return False


@pytest.mark.parametrize("programs", [5, 12])
def test_programs_that_start_at_once_stay_within_the_limit(unmeasured: Served, machine: Machine, programs: int) -> None:
    unmeasured.server.set_group("g", memory=LIMIT)
    started = [machine.start("g", "grow") for _ in range(programs)]
    with measuring(unmeasured):
        made = sum([has_context(program) for program in started])
    assert made == 2


def test_the_daemon_frees_the_turn_of_one_that_is_dead(unmeasured: Served, machine: Machine) -> None:
    unmeasured.server.set_group("g", memory=LIMIT)
    other = RawClient(machine.socket, "g", own_process=True).attach(unmeasured.uuid)
    first = holder(unmeasured)
    assert other.ledger.get("turn", size=4) == first.slot + 1
    first.end()
    eventually(lambda: other.ledger.get("turn", size=4) == 0)
    assert machine.start("g", "grow").line() == "ready"


def test_one_that_keeps_the_turn_loses_it_and_what_it_took_counts(unmeasured: Served, machine: Machine) -> None:
    """As one that is stopped within it."""
    unmeasured.server.set_group("g", memory=LIMIT)
    first = holder(unmeasured)
    first.ledger.put("slots", 512 * MIB, index=first.slot)
    started = [machine.start("g", "grow") for _ in range(3)]
    with measuring(unmeasured):
        made = sum([has_context(program) for program in started])
    assert made == 1
    assert unmeasured.used("g") <= LIMIT


def test_a_group_that_has_less_than_a_context_may_take(unmeasured: Served, machine: Machine) -> None:
    """It keeps what it has left until its first one is measured; by then the next is known to be too large."""
    unmeasured.server.set_group("g", memory=CONTEXT // 2)
    started = [machine.start("g", "contexts", 1) for _ in range(2)]
    with measuring(unmeasured):
        assert sorted(program.line() for program in started) == ["0", "1"]


def test_another_context_counts_where_none_was_measured_by_itself(unmeasured: Served, machine: Machine) -> None:
    """The first one was accounted for together with memory, as beside a daemon that was stopped."""
    unmeasured.server.set_group("g", memory=LIMIT)
    first = machine.start("g", "grow")
    assert first.line() == "ready"
    first.tell("64")
    assert first.line().split()[0] == "0"
    unmeasured.server.set_memory_of_processes(unmeasured.uuid, [(first.pid, CONTEXT + 64 * MIB, None)])
    first.tell("0")
    assert first.line().split()[0] == "0"
    unmeasured.server.set_group("g", memory=CONTEXT + 164 * MIB)
    assert machine.start("g", "contexts", 1).line() == "0"
    unmeasured.server.set_group("g", memory=2 * CONTEXT + 164 * MIB)
    assert machine.start("g", "contexts", 1).line() == "1"


def waits(program: Running) -> bool:
    """Whether the thread that makes its context does, beside the main thread."""
    calls = [call.read_text().split()[0] for call in Path(f"/proc/{program.pid}/task").glob("*/syscall")]
    return calls.count(str(FUTEX)) == 2


def test_strict_programs_that_waited_for_the_daemon_stay_within_the_limit(machine: Machine) -> None:
    """What a context takes is asked for when the daemon is there."""
    uuid = bytes.fromhex(machine.run(None, "uuid"))
    started = [machine.start("g", "contexts", 1, GEMLET_STRICT="1") for _ in range(5)]
    eventually(lambda: all(waits(program) for program in started))
    server = native.Server()
    server.add_device(uuid, 0, context_estimate=CONTEXT)
    server.set_group("g", memory=LIMIT)
    server.listen(machine.socket)
    server.start()
    try:
        assert sum([int(program.line()) for program in started]) == 2
    finally:
        for program in started:
            program.kill()
            program.communicate()
        server.stop()


def test_a_group_without_a_limit_waits_for_nobody(unmeasured: Served, machine: Machine) -> None:
    first = holder(unmeasured)
    assert machine.start("g", "grow").line() == "ready"
    assert first.ledger.get("turn", size=4) == first.slot + 1


def test_several_threads_of_one_program_take_turns_too(unmeasured: Served, machine: Machine) -> None:
    unmeasured.server.set_group("g", memory=LIMIT)
    with measuring(unmeasured):
        made = machine.start("g", "contexts", 8).line()
    assert made in ("2", "5"), "two of its threads' own; or one, and the primary one of four threads"
