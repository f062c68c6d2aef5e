"""What the hook charges is what the driver holds, whatever the call and whatever fails.

The cases are native (native/memory_test.cpp): each compares what the hook accounts for with what a small driver holds,
which takes memory as the real one does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sim.hook.conftest import Built


SOURCE = (Path(__file__).parent / "native/memory_test.cpp").read_text()
CASES = re.findall(r"^    CASE\((\w+)\),$", SOURCE, re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_memory(built: Built, case: str) -> None:
    done = built.run("memory_test", case)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stdout + done.stderr
