"""The daemon is killed, and the next one takes its time, while programs allocate: the group stays within its limit at
every moment, whichever daemon's ledger each of them is in.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually
from tests.sim.robustness.test_restart import DAEMON, LIMIT, Host, host, more, settled

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Running

__all__ = ["host"]

# Stops where it is told, until it may go on; its API answers nobody before.
PAUSES = """
import pathlib, time
from gemlet.daemon.service import Service
from gemlet.daemon.sockets import Sockets
here, on = pathlib.Path({here!r}), pathlib.Path({on!r})
def pause():
    here.touch()
    while not on.exists():
        time.sleep(0.001)
if {point!r} == "before-it-counts":
    listen = Sockets.listen
    def listens(self, path):
        listen(self, path)
        pause()
    Sockets.listen = listens
else:
    inherit = Service._inherit
    async def inherits(self, before):
        await inherit(self, before)
        pause()
    Service._inherit = inherits
"""
MOST = """
import ctypes
n = ctypes.c_ulonglong()
ctypes.CDLL("libcuda.so.1").gemletSimMostMemory(0, ctypes.byref(n))
print(n.value)
"""
POINTS = ["before-it-counts", "before-it-answers"]


class Slow:
    """A daemon that pauses at a point of its start."""

    def __init__(self, host: Host, point: str) -> None:
        self._host = host
        self._here, self._on = (host.folder / name for name in ("here", "on"))
        for file in (self._here, self._on):
            file.unlink(missing_ok=True)
        code = PAUSES.format(here=str(self._here), on=str(self._on), point=point)
        with (host.folder / "log").open("w") as log:
            host.process = subprocess.Popen(
                [sys.executable, "-c", code + DAEMON, "daemon", "--simulate", "--no-history"],
                env=host.environment(), stdout=log, stderr=log, text=True,
            )  # fmt: skip
        eventually(self._here.exists)

    def go_on(self) -> None:
        self._on.touch()
        eventually(lambda: self._host.ask("ping").get("pid") == getattr(self._host.process, "pid", 0))


def most(host: Host) -> int:
    """MiB that the device held at most, contexts included."""
    environment = host.machine.environment(None)
    done = subprocess.run([sys.executable, "-c", MOST], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout) // MIB


def attempt(program: Running, mib: int) -> None:
    """One allocation, of which the program says later what came of it."""
    program.tell(str(mib))


def outcome(program: Running) -> str:
    return program.line().split()[0]


@pytest.mark.parametrize("point", POINTS)
def test_one_that_does_not_come_has_taken_no_more(host: Host, point: str) -> None:
    first, second = host.grow("g", 0, "--memory", LIMIT), host.grow("g", 0)
    settled(host, "g", 1000)
    host.kill()
    slow = Slow(host, point)
    attempt(first, 800)  # the daemon has counted it without
    got = outcome(first)  # longer than it waits
    first.send_signal(signal.SIGSTOP)
    slow.go_on()
    other = more(second, 800)
    assert (got, other) == ("2", "0")
    assert most(host) <= 2048
    first.send_signal(signal.SIGCONT)
    eventually(lambda: not host.ask("status")["unmanaged"])
    assert (more(first, 260), more(first, 240)) == ("2", "0")


@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_that_answers_in_time_refuses_nothing(host: Host, point: str) -> None:
    first, second = host.grow("g", 0, "--memory", LIMIT), host.grow("g", 0)
    settled(host, "g", 1000)
    host.kill()
    slow = Slow(host, point)
    attempt(first, 500)
    attempt(second, 500)
    slow.go_on()
    assert (outcome(first), outcome(second)) == ("0", "0")
    assert (more(first, 40), more(second, 40)) == ("0", "2")


def test_what_one_took_unseen_before_it_was_frozen_counts(host: Host) -> None:
    frozen, other = host.grow("g", 0, "--memory", LIMIT), host.grow("g", 0)
    settled(host, "g", 1000)
    assert host.process is not None
    host.process.send_signal(signal.SIGSTOP)  # writes down nothing of what follows
    assert more(frozen, 400) == "0"
    frozen.send_signal(signal.SIGSTOP)
    host.kill()
    host.start()
    assert (more(other, 600), more(other, 60)) == ("0", "2")
    assert most(host) <= 2048


def test_those_of_whom_nothing_was_written_down_count(host: Host) -> None:
    programs = [host.grow("g", 100, "--memory", LIMIT) for _ in range(3)]
    settled(host, "g", 1800)
    host.kill()
    (host.folder / "members.json").write_text("[]")
    slow = Slow(host, "before-it-answers")
    for program in programs:
        attempt(program, 240)
    slow.go_on()
    assert sorted(outcome(program) for program in programs) == ["0", "2", "2"]
    assert most(host) <= 2048


def test_nobody_is_held_up_by_the_frozen_for_long(host: Host) -> None:
    frozen = host.grow("g", 500, "--memory", LIMIT)
    settled(host, "g", 1000)
    frozen.send_signal(signal.SIGSTOP)
    host.kill()
    host.start()
    other = host.grow("g", 0)  # has never had the ledger of before
    assert (more(other, 540), more(other, 20)) == ("0", "2")


def test_programs_that_never_rest(host: Host) -> None:
    limit = 3 * CONTEXT // MIB + 700
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    programs = [
        host.run("--group", "g", "--memory", f"{limit}MiB", "--", host.machine.program, "hoard", 600, n, "exact")
        for n in range(3)
    ]
    for program in programs:
        assert program.line() == "ready", program.end()
    settled(host, "g", 1500)
    for program in programs:
        program.tell("go")
    for _ in range(6):
        host.kill()
        slow = Slow(host, chance.choice(POINTS))
        held = chance.choice([None, *programs])
        if held:
            held.send_signal(signal.SIGSTOP)
        subprocess.run(["sleep", str(chance.choice([0, 0.1, 1, 3]))], check=True)
        slow.go_on()
        if chance.random() < 0.5:
            host.start("--take-over")
        if held:
            held.send_signal(signal.SIGCONT)
        eventually(lambda: not host.ask("status")["unmanaged"])
    assert [program.poll() for program in programs] == [None] * 3
    assert most(host) <= limit
