"""Enumerations that stand on both sides of the wire: native names and values against Python's.

Within native/ static_asserts tie the wire's values to the arbiter's (native/server/registry.hpp).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gemlet.daemon.explain import TURNS
from gemlet.daemon.history_moment import REASONS
from gemlet.model import Gang, Priority, Workload
from gemlet.simulate import client
from tests.unit.server import wire

native = pytest.importorskip("gemlet._native", reason="the native module is not built")
HEADER = (Path(__file__).resolve().parents[3] / "native/wire.h").read_text()


def test_groups() -> None:
    assert native.ENUMERATIONS["priority"] == tuple(Priority)
    assert native.ENUMERATIONS["gang"] == tuple(Gang)
    assert native.ENUMERATIONS["workload"] == tuple(Workload)


def test_explain_knows_each_reason_for_turns() -> None:
    assert native.ENUMERATIONS["why"] == ("shares", *TURNS)


def test_the_simulator_speaks_of_the_same_reasons() -> None:
    assert native.ENUMERATIONS["stop_reason"] == get_args(client.Reason)


def values(enumeration: str) -> dict[str, int]:
    """The enumerators of one enumeration of wire.h."""
    body = re.search(rf"enum class {enumeration} [^{{]*{{(.*?)}};", HEADER, re.DOTALL)
    assert body is not None
    return {name: int(value) for name, value in re.findall(r"^ +k(\w+) = (\d+),", body[1], re.MULTILINE)}


# Python's names are wire.py's, in capitals. Names that differ, because two enumerations would share them, are listed
# here.
@pytest.mark.parametrize(
    ("enumeration", "renamed"),
    [
        ("MessageType", {}),
        ("Status", {}),
        ("StopReason", {"Revoked": "BY_REVOCATION"}),
        ("TokenState", {}),
        ("Admission", {}),
    ],
)
def test_the_wire(enumeration: str, renamed: dict[str, str]) -> None:
    for name, value in values(enumeration).items():
        assert getattr(wire, renamed.get(name, name.upper())) == value, name


def test_names_follow_the_values_of_the_wire() -> None:
    reasons, admissions = values("StopReason"), values("Admission")
    assert {name.lower(): value for name, value in reasons.items()} == {
        name: value for value, name in enumerate(native.ENUMERATIONS["stop_reason"])
    }
    assert {name.lower(): value for name, value in admissions.items()} == {
        name or "granted": value for value, name in enumerate(native.ENUMERATIONS["refusal"])
    }


def test_the_history_and_the_trace_number_the_reasons_alike() -> None:
    assert (*native.ENUMERATIONS["why"], "memory") == REASONS
