"""A program that outlived its daemon, while others of its group have joined the next one already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

native = pytest.importorskip("gemlet._native")
LIMIT = 4096 * MIB


@pytest.mark.parametrize("round_", range(3))  # by chance it joins by itself before it is asked to allocate
def test_it_joins_before_it_takes_more(served: Served, machine: Machine, round_: int) -> None:
    served.server.set_group("g", memory=LIMIT)
    program = machine.start("g", "grow", 0)
    assert program.line() == "ready", program.end()
    program.tell("100")
    assert program.line().split()[0] == "0"
    eventually(lambda: served.used("g") == CONTEXT + 100 * MIB)
    elder = served.server
    elder.hand_over()
    elder.leave()  # as if it had been killed
    assert program.stderr is not None
    assert program.stderr.readline()  # it says that it has noticed
    after = native.Server()
    try:
        after.add_device(served.uuid, 0, context_estimate=CONTEXT)
        after.set_group("g", memory=LIMIT)
        after.listen(machine.socket)
        after.start()
        other = RawClient(machine.socket, "g").attach(served.uuid)
        other.ledger.put("slots", LIMIT - CONTEXT - 200 * MIB, index=other.slot)
        program.tell("300")
        assert program.line().split()[0] == "2", "it was given what others have"
        program.tell("50")
        assert program.line().split()[0] == "0"
        other.close()
    finally:
        program.kill()
        program.communicate()
        after.stop()
