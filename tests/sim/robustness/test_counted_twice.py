"""While a program starts, its context counts twice for a moment; others of its group are not refused for that."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually
from tests.unit.server.wire import CONTEXT as CONTEXTS
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

LEFT = 64 * MIB


def test_what_just_fits_is_granted_while_another_program_starts(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=2 * CONTEXT + LEFT)
    program = machine.start("g", "grow")
    assert program.line() == "ready"
    other = RawClient(machine.socket, "g", own_process=True).attach(served.uuid)
    other.ledger.put("slots", CONTEXT, index=other.slot)  # room for its context, which it makes now
    other.send(CONTEXTS, value=1)
    eventually(lambda: served.used("g") == 3 * CONTEXT)
    granted = threading.Event()

    def account() -> None:
        while not granted.wait(0.02):  # so that it does not matter how long the other one takes to ask
            other.send(CONTEXTS, value=0)
            other.send(CONTEXTS, value=1)

    accounting = threading.Thread(target=account)
    accounting.start()
    try:
        program.tell(str(LEFT // MIB))
        time.sleep(0.1)  # it asks meanwhile
        other.ledger.put("slots", 0, index=other.slot)
        assert program.line().split()[0] == "0"
    finally:
        granted.set()
        accounting.join()


def test_what_does_not_fit_is_refused_all_the_same(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=2 * CONTEXT + LEFT)
    program = machine.start("g", "grow")
    assert program.line() == "ready"
    other = RawClient(machine.socket, "g", own_process=True).attach(served.uuid)
    other.ledger.put("slots", 2 * MIB, index=other.slot)
    other.send(CONTEXTS, value=1)
    eventually(lambda: served.used("g") == 2 * CONTEXT + 2 * MIB)
    program.tell(str(LEFT // MIB))
    assert program.line().split()[0] == "2"
