"""kill -9, SIGSTOP and every way a process can end: the others go on, and the books are exact."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Running, Served


def descriptors() -> int:
    """Those a server has for its clients."""
    count = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(entry.path).startswith(("socket:", "/memfd:", "anon_inode:"))  # noqa: PTH115
    return count


def test_fifty_clients_are_killed_at_random_moments(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=4096 * MIB)
    survivors = [machine.start("g", "work", 60, 100) for _ in range(2)]
    for survivor in survivors:
        assert survivor.line() == "ready"
    held = 2 * (CONTEXT + 100 * MIB)
    eventually(lambda: served.used("g") == held)
    before, dice = descriptors(), random.Random(1)
    victims: list[Running] = []
    killed = 0
    while killed < 50:
        if len(victims) < 3:
            victims.append(machine.start("g", "hoard", 60, killed))
            victims[-1].tell("go")
        time.sleep(dice.uniform(0, 0.06))
        if len(victims) == 3 or dice.random() < 0.3:
            victim = victims.pop(dice.randrange(len(victims)))
            victim.kill()
            killed += 1
            if killed % 10 == 0:
                n = [s.rounds() for s in survivors]
                eventually(lambda n=n: all(s.rounds() > m for s, m in zip(survivors, n, strict=True)))
    for victim in victims:
        victim.kill()
        victim.wait()
    eventually(lambda: len(served.clients()) == 2)
    eventually(lambda: served.used("g") == held)
    assert sorted(c["pid"] for c in served.clients()) == sorted(s.pid for s in survivors)
    eventually(lambda: descriptors() == before)
    for survivor in survivors:
        n = survivor.rounds()
        eventually(lambda s=survivor, n=n: s.rounds() > n + 3)
        survivor.kill()
        survivor.wait()
    eventually(lambda: not served.clients())
    eventually(lambda: served.used("g") == 0)


def test_a_stopped_holder_keeps_nobody_waiting_and_goes_on_later(served: Served, machine: Machine) -> None:
    stopped, other = (machine.start(g, "work", 60) for g in "ab")
    eventually(lambda: stopped.rounds() > 5 and other.rounds() > 5)
    for _ in range(5):
        stopped.send_signal(signal.SIGSTOP)
        n = other.rounds()
        eventually(lambda n=n: other.rounds() > n + 20)
        stopped.send_signal(signal.SIGCONT)
        m = stopped.rounds()
        eventually(lambda m=m: stopped.rounds() > m + 5)
    begin = stopped.rounds(), other.rounds()
    eventually(lambda: stopped.rounds() > begin[0] + 50 and other.rounds() > begin[1] + 50)


def test_a_process_does_not_pay_for_a_turn_that_it_was_granted_while_it_was_stopped(
    served: Served, machine: Machine
) -> None:
    for group in "ab":
        served.server.set_group(group, workload="alone")
    stopped, other = (machine.start(g, "work", 120) for g in "ab")
    eventually(lambda: stopped.rounds() > 5 and other.rounds() > 5)
    paid = []
    for _ in range(4):  # unless it had not yet told that its last turn had drained
        while True:
            stopped.send_signal(signal.SIGSTOP)
            group = served.group("a")
            if group["waiting"] and not group["holding"]:  # it is granted a turn only if it has asked for one
                break
            stopped.send_signal(signal.SIGCONT)
            time.sleep(0.003)
        used, rounds = served.time("a"), other.rounds()
        eventually(lambda rounds=rounds: other.rounds() > rounds + 1000)  # of a millisecond
        n = stopped.rounds()
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda n=n: stopped.rounds() > n + 1)
        paid.append(served.time("a") - used)
    assert min(paid) < 0.5


def test_a_process_that_was_stopped_in_its_turn_pays_for_what_others_leave(served: Served, machine: Machine) -> None:
    """What it left on the device may have run on for as long, but not while the device worked for others."""
    for group in "ab":
        served.server.set_group(group, workload="alone")
    stopped = machine.start("a", "work", 120)
    tries: list[tuple[float, float]] = []  # the part of the other's work that it did not pay for; seconds paid later
    # It may have just been granted a turn in which it did nothing yet, which costs nothing, or just given one back; and
    # of what the other did only a part is known where the machine is busy.
    while not any(left > 0.5 and paid > 0.9 for left, paid in tries):
        assert len(tries) < 5, tries
        other = machine.start("b", "work", 120)
        eventually(lambda other=other: stopped.rounds() > 5 and other.rounds() > 5)
        while True:
            stopped.send_signal(signal.SIGSTOP)
            if served.group("a")["holding"]:
                break
            stopped.send_signal(signal.SIGCONT)
            time.sleep(0.003)
        used, rounds, since = served.time("a"), other.rounds(), time.monotonic()
        eventually(lambda other=other, rounds=rounds: other.rounds() > rounds + 1000)  # of a millisecond
        other.kill()
        other.wait()
        eventually(lambda: not served.group("b").get("clients"))  # all that it did is told now
        unpaid = time.monotonic() - since - (served.time("a") - used)
        left = unpaid / ((other.rounds() - rounds) / 1000)
        used = served.time("a")
        if served.group("a")["holding"]:
            eventually(lambda used=used: served.time("a") > used + 1)
        n = stopped.rounds()
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda n=n: stopped.rounds() > n + 1)
        tries.append((left, served.time("a") - used))


def test_a_member_stopped_inside_the_lock_delays_its_group_but_not_for_ever(served: Served, machine: Machine) -> None:
    from tests.unit.server import wire

    served.server.set_group("g", memory=4096 * MIB)
    rude = wire.RawClient(machine.socket, "g", own_process=True).attach(served.uuid)
    rude.ledger.put("lock", rude.slot + 1, size=4)  # as SIGSTOP between two instructions would leave it
    program = machine.start("g", "work", 0.2, 10)
    assert program.end()[0] == 0
    survivor = wire.RawClient(machine.socket, "g").attach(served.uuid)
    rude.ledger.put("lock", rude.slot + 1, size=4)
    rude.end()  # ... and its death ends it at once
    eventually(lambda: survivor.ledger.get("lock", size=4) == 0)
    survivor.close()
    machine.run("g", "work", 0.2, 10)


@pytest.mark.parametrize(
    "mode", ["exit-holding", "quick-exit", "exit-while-launching", "launch-at-exit", "fork-before", "fork-after"]
)
def test_every_exit_ends(served: Served, machine: Machine, mode: str) -> None:
    """Also with threads blocked at the gate: the neighbour holds the token most of the time."""
    neighbour = machine.start("b", "work", 60)
    eventually(lambda: neighbour.rounds() > 3)
    programs = [machine.start("a", mode, 0.3) for _ in range(3)]
    children = []
    for program in programs:
        code, out, err = program.end() if mode != "fork-after" else _end_of_parent(program)
        assert code == 0, (mode, out, err)
        children += [int(out)] if mode == "fork-after" else []
    # A forked child that is still there has nothing: not its parent's memory, not its parent's turn.
    eventually(lambda: not served.group("a").get("clients"))
    eventually(lambda: served.used("a") == 0)
    n = neighbour.rounds()
    eventually(lambda: neighbour.rounds() > n + 20)
    for child in children:
        os.kill(child, signal.SIGKILL)  # it keeps pipes of ours open


def neighbours(machine: Machine, group: str | None) -> None:
    """One program that always has work, unless there is no group for it."""
    if group is None:
        return
    other = machine.start(group, "work", 60)
    eventually(lambda: other.rounds() > 3)


@pytest.mark.parametrize("neighbour", [None, "b"])
@pytest.mark.parametrize("how", ["plain", "thread", "contexts", "fork"])
def test_no_thread_of_the_hook_calls_a_driver_that_is_torn_down(
    served: Served, machine: Machine, how: str, neighbour: str | None
) -> None:
    """The simulated driver ends a process whose hook does; the card's crashes now and then."""
    neighbours(machine, neighbour)
    for _ in range(5):
        code, out, err = machine.start("a", "leave-queued", 0, how).end()
        assert code == 0, (out, err)
    eventually(lambda: not served.group("a").get("clients"))


@pytest.mark.parametrize("neighbour", [None, "b"])
def test_threads_that_wait_at_the_exit_can_be_joined(served: Served, machine: Machine, neighbour: str | None) -> None:
    """Those of a pool that outlives the driver; the neighbour keeps its turn for long."""
    served.server.set_group("b", workload="alone")
    neighbours(machine, neighbour)
    for _ in range(5):
        code, out, err = machine.start("a", "join-late", 0.2).end()
        assert code == 0, (out, err)
    eventually(lambda: not served.group("a").get("clients"))


@pytest.mark.parametrize("neighbour", [None, "b", "urgent"])
def test_work_that_waits_for_its_own_thread(served: Served, machine: Machine, neighbour: str | None) -> None:
    """What is in flight cannot end before the thread has submitted more; so that thread must not wait for it."""
    served.server.set_group("urgent", priority="latency")
    others = [machine.start(neighbour, "work", 60)] if neighbour else []
    for other in others:
        eventually(lambda other=other: other.rounds() > 3)
    gated = machine.start("a", "gates", 60)
    eventually(lambda: gated.rounds() >= 4)
    for other in others:
        n = other.rounds()
        eventually(lambda n=n, other=other: other.rounds() > n + 20)


@pytest.mark.parametrize("whose", ["program", "hook"])
@pytest.mark.parametrize("what", ["capture", "launch", "stream", "context"])
def test_work_beside_a_queue_that_is_full(served: Served, machine: Machine, what: str, whose: str) -> None:
    """A thread, ``whose`` it is, is held up in the driver by a call of the hook's; that must hold up no other one."""
    machine.run("a", "beside-full-queue", 0, 0, what, whose)


@pytest.mark.parametrize("room", range(4))
def test_graphs_beside_a_queue_that_is_full(served: Served, machine: Machine, room: int) -> None:
    """A thread launches graphs that allocate until its queue has no more ``room`` for one; others go on meanwhile."""
    served.server.set_group("a", memory=CONTEXT + 2048 * MIB)
    machine.run("a", "beside-full-queue", 0, 0, "graph", room)


@pytest.mark.parametrize("neighbour", [None, "b", "urgent"])
def test_a_capture_beside_a_thread_that_launches(served: Served, machine: Machine, neighbour: str | None) -> None:
    """That thread may wait in the hook until less is in flight, and so ask the driver about events of the hook's."""
    served.server.set_group("urgent", priority="latency")
    neighbours(machine, neighbour)
    machine.run("a", "capture-beside")


def test_a_capture_beside_a_thread_with_a_default_stream_of_its_own(served: Served, machine: Machine) -> None:
    """It is not asked of the legacy stream whether that stream is captured."""
    machine.run("a", "capture-beside-default")


@pytest.mark.parametrize("how", ["streams", "green", "reset", "release", "frees"])
def test_contexts_end(served: Served, machine: Machine, how: str) -> None:
    """The simulated driver ends a process whose hook asks about what went with them."""
    machine.run("a", "end-contexts", 0, how)


def _end_of_parent(program: Running) -> tuple[int, str, str]:
    out = program.line()  # its child keeps the pipe open
    return program.wait(10), out, ""


def test_exec_returns_what_the_program_held(served: Served, machine: Machine) -> None:
    program = machine.start("g", "exec", 0.3, 200)
    eventually(lambda: served.used("g") == CONTEXT + 200 * MIB)
    eventually(lambda: not served.clients())
    eventually(lambda: served.used("g") == 0)  # only a process that ended is known at once to hold nothing
    assert program.poll() is None  # it sleeps on as something else


def test_a_program_that_closes_all_its_files_goes_on(served: Served, machine: Machine) -> None:
    neighbour = machine.start("b", "work", 60)
    eventually(neighbour.rounds)
    program = machine.start("a", "close-all", 1.5, GEMLET_QUIET="1")
    code, out, err = program.end()
    assert code == 0, (code, out, err)  # 10: the hook wrote to a socket of the program's
    before = neighbour.rounds()
    eventually(lambda: neighbour.rounds() > before + 10)


def test_no_look_of_the_hook_ends_a_capture(served: Served, machine: Machine) -> None:
    machine.start("b", "work", 60)  # the hook looks most often while another program contends
    program = machine.start("a", "capture-slowly", 2)
    code, out, err = program.end()
    assert code == 0, (out, err)


def test_eight_threads_with_streams_and_captures_that_come_and_go(served: Served, machine: Machine) -> None:
    served.server.set_group("a", memory=8192 * MIB)
    neighbour = machine.start("b", "work", 60)
    programs = [machine.start("a", "threads", 3) for _ in range(2)]
    for program in programs:
        code, out, err = program.end()
        assert code == 0, (out, err)
        assert int(out.split()[0]) > 50
    n = neighbour.rounds()
    eventually(lambda: neighbour.rounds() > n + 20)
    eventually(lambda: served.used("a") == 0)
