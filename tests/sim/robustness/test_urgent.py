"""The alarm of the class `latency` is a hint: a client that raises it for nothing costs its neighbours little."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import eventually
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served


@pytest.mark.alone
def test_an_alarm_that_never_ends_costs_little(machine: Machine, served: Served) -> None:
    served.server.set_group("urgent", priority="latency")
    liar = RawClient(machine.socket, "urgent").attach(served.uuid)
    liar.send(wire.REQUEST)
    liar.await_state(wire.RUN)
    liar.stop(wire.IDLE)
    busy = machine.start("busy", "work", 30)
    eventually(lambda: busy.rounds() > 50)
    done = threading.Event()

    def cry() -> None:
        for n in range(1, 1 << 30):
            liar.shared.put("urgent", n, size=4)
            if done.wait(0.0001):
                return

    def rate(seconds: float) -> float:
        begin, before = time.monotonic(), busy.rounds()
        time.sleep(seconds)
        return (busy.rounds() - before) / (time.monotonic() - begin)

    try:
        # In turns, so that other work on the machine disturbs both.
        quiet = alarmed = 0.0
        for _ in range(3):
            quiet += rate(0.5)
            done.clear()
            crier = threading.Thread(target=cry)
            crier.start()
            alarmed += rate(0.5)
            done.set()
            crier.join()
    finally:
        done.set()
        liar.close()
    print(f"{alarmed / quiet:.2f} of the rate without alarms")
    assert alarmed > 0.6 * quiet
