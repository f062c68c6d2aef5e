"""Programs that are stopped (Ctrl-Z) while their memory is away."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from tests.sim.robustness.hurt_machine import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.swap.conftest import Program, Swapping


def stop_while_it_waits(s: Swapping, a: Program) -> None:
    """Beside one that always has work; now and then its turn comes too early for that."""
    for _ in range(20):
        time.sleep(0.3)  # the other one comes in
        a.tell("work", 0.1, 0)
        eventually(lambda: s.memory(a)["queued"] or s.memory(a)["here"])
        a.running.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, a.running.pid, os.WSTOPPED)
        if s.memory(a)["queued"]:
            return
        a.running.send_signal(signal.SIGCONT)
        assert int(a.answer()) > 0
    raise AssertionError("it never waits")


def test_one_that_is_stopped_while_it_waits_takes_nobodys_place(swapping: Callable[..., Swapping]) -> None:
    s = swapping(200)
    a, b = s.two(150, 3)
    b.tell("work", 4, 0)
    stop_while_it_waits(s, a)
    assert int(b.answer()) > 0
    for _ in range(2):
        b.tell("work", 1, 0)  # longer than an epoch: else it waits for ever
        assert int(b.answer()) > 0
    a.running.send_signal(signal.SIGCONT)
    assert int(a.answer()) > 0
    for program in (a, b, a):
        program.done("all")
    assert s.most() <= 200
