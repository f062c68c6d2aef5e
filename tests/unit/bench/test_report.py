"""Verdicts, tables, and the JSON file that is whole at any moment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.report import Report, Row, grid, heading, line, meets, number

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (0.99, ">= 0.985", True),
        (0.98, ">= 0.985", False),
        (2500.0, "<= 2500", True),
        (float("nan"), "<= 50", False),
        (1.02, "1 +- 0.02", True),
        (0.97, "1 +- 0.02", False),
        (0.3, "-", None),
        (0.3, "one cycle", None),
    ],
)
def test_a_verdict_follows_from_value_and_target(value: float, target: str, verdict: bool | None) -> None:
    assert meets(value, target) is verdict
    assert Row("x", value, target).verdict == {True: "met", False: "missed", None: ""}[verdict]


def test_a_line_says_what_was_missed() -> None:
    assert line(Row("total", 0.9, ">= 0.985", "0.5 / 0.4")).split() == [
        "total", "0.9000", ">=", "0.985", "missed", "0.5", "/", "0.4",
    ]  # fmt: skip
    assert number(1234.56) == "1234.6"
    assert number(float("nan")) == "-"


def test_columns_are_aligned() -> None:
    text = grid(["", "p50", "targets"], [["alone", "7", "-"], ["gemlet", "1234", "met"]], left=(0, -1))
    assert text.splitlines() == ["         p50  targets", "alone      7  -", "gemlet  1234  met"]


def test_simulated_is_the_first_word() -> None:
    assert heading({"device": "x", "simulated": True}).startswith("SIMULATED")
    assert "SIMULATED" not in heading({"device": "x", "simulated": False})


def test_the_file_is_whole_after_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    report = Report({"device": "none"}, path)
    report.add("first", 0.5, "<= 1")
    first = json.loads(path.read_text())
    report.put("courses", {"name": "µ", "points": [[0, 1]]})
    second = json.loads(path.read_text())
    assert [row["what"] for row in first["rows"]] == ["first"]
    assert first["rows"][0]["verdict"] == "met"
    assert second["courses"] == [{"name": "µ", "points": [[0, 1]]}]
    assert second["schema"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert "first" in capsys.readouterr().out
