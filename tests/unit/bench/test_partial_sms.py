"""What bench.partial_sms runs, and what it calls wrong. The probe itself needs a GPU."""

from __future__ import annotations

import ast

from bench.partial_sms import PROBE, command, line, wrong
from gemlet.membership import PERCENTAGE


def result(unwritten: int = 0, off: float = 0.001) -> dict[str, object]:
    return {"what": "product", "of": 100, "unwritten": unwritten, "off": off}


def row(**more: object) -> dict[str, object]:
    return {"way": "own", "sms": 60, "sees": 58, "ms": None} | more


def test_a_fraction_is_set_by_hand_or_by_gemlet() -> None:
    arguments, environment = command("own", 33, {"A": "1"}, timed=False)
    assert environment == {"A": "1", PERCENTAGE: "25.0000"}
    assert arguments[1] == "-c"
    arguments, environment = command("whole", 33, {"A": "1"}, timed=True)
    assert environment == {"A": "1"}
    assert arguments[arguments.index("--sm") + 1] == "25.0000%"


def test_results_that_are_not_written_or_off_are_wrong() -> None:
    assert wrong(row(found=[result(), result(unwritten=7), result(off=0.5)])) == [
        "product: 7 of 100 not written, off by 0.00",
        "product: 0 of 100 not written, off by 0.50",
    ]
    assert line(row(found=[result()], ms=0.25)) == (
        "own    60 SMs, sees  58: all right; a product of 4096 x 4096 x 4096 takes 0.25 ms"
    )
    assert "1 of 2 wrong; such as product: 7" in line(row(found=[result(), result(unwritten=7)]))
    assert line(row(error="no end")) == "own    60 SMs: no end"


def test_the_probe_is_python() -> None:
    ast.parse(PROBE)
