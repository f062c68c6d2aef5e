"""The bench of gangs on virtual devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.gangs.__main__ import main
from bench.gangs.virtual import HEAD

if TYPE_CHECKING:
    import pytest


def test_a_case_is_printed_with_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--simulate", "--seconds", "1.5", "--only", "2 x DDP"]) == 0
    first, head, row = capsys.readouterr().out.splitlines()
    assert first.startswith("simulated")
    assert tuple(head.split(" | ")) == HEAD
    name, *speeds, worst, stall = row.split(" | ")
    assert name == "2 x DDP"
    sliced, alone, together = (sum(map(float, way.split(" + "))) for way in speeds)
    assert alone < sliced < together
    assert len(worst.split()) == 2
    assert stall.endswith(" ms")
