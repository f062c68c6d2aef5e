"""Every function that takes device memory, at the limit: all that is left can be had, and not a block more."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

PROGRAM = Path(__file__).with_name("every_allocation.py")
WAYS = re.findall(r'^    "(cu\w+)": \(', PROGRAM.read_text(), re.MULTILINE)
LEFT = 64 * MIB


@pytest.mark.parametrize("way", WAYS)
def test_all_that_is_left_and_no_more(served: Served, machine: Machine, way: str) -> None:
    served.server.set_group("g", memory=CONTEXT + LEFT)
    one = machine.start("g", PROGRAM, way, LEFT, 20, command=sys.executable)
    line = one.line()
    if not line:
        _, _, err = one.end()
        assert f"{way} is not simulated" in err, err
        pytest.skip("the simulated driver does not have it: it is tried as one that is refused")
    allowed, beyond = line.split(";")
    assert allowed == "", "beside all that the group has"
    assert beyond == "2"
    eventually(lambda: served.used("g") == CONTEXT)
    one.tell("")
    assert one.end()[0] == 0
