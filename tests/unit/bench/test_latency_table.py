"""The targets of the latency table and its rows."""

from __future__ import annotations

import pytest

from bench.latency_table import HEAD, Measured, arrived_after, cells, checks, entry, table
from bench.machine import Client
from bench.windows import Completed


def measured(p50: float, p99: float, kept: float | None = None, unserved: int = 0) -> Measured:
    return Measured(p50, p99, p99, p99, kept, unserved, [p50, p99])


def test_ratios_are_to_the_program_alone() -> None:
    found = checks("100us", "gemlet", measured(600, 900, 0.86), measured(300, 600), None)
    assert [(what, value, target) for what, value, target in found] == [
        ("p99 / alone", 1.5, "<= 1.6"),
        ("p50 / alone", 2.0, "<= 1.8"),
        ("neighbour keeps", 0.86, ">= 0.85"),
    ]
    alone = entry(None, "alone", "alone", measured(300, 600))
    row = cells(entry("100us", "gemlet", "gemlet", measured(600, 900, 0.86), found), alone)
    assert len(row) == len(HEAD)
    assert row[5:8] == ["2.00", "1.50", "0.860"]
    assert row[8] == "p99 / alone <= 1.6: met; p50 / alone <= 1.8: missed; neighbour keeps >= 0.85: met"


def test_each_neighbour_has_its_own_target() -> None:
    alone, slicing = measured(300, 600), measured(1600, 6000, 0.95)
    assert [c[0] for c in checks("100us", "mps-gemlet", measured(1, 1, 1), alone, None)] == [
        "p99 / alone", "p50 / alone", "neighbour keeps",
    ]  # fmt: skip
    assert checks("1ms", "gemlet", measured(1, 3000, 0.9), alone, slicing) == [("p99 less alone, us", 2400, "<= 2500")]
    assert checks("graph", "gemlet", measured(1, 6600, 0.9), alone, slicing) == [
        ("p99 / time slicing", pytest.approx(1.1), "<= 1")
    ]
    assert checks("100us", "gemini", measured(1, 1, 1), alone, slicing) == []


def test_requests_that_were_never_served_are_reported() -> None:
    assert cells(entry("100us", "fifo", "fifo", measured(1, 2, 0.9, unserved=7)), None)[-1] == "7 never served"


def test_the_table_can_be_made_from_a_part_of_the_rows() -> None:
    rows = [entry("100us", "gemlet", "gemlet", measured(600, 900, 0.86)) | {"identical": {"losses": False}}]
    assert "losses DIFFERENT" in table(rows)
    assert table([]).split() == [word for head in HEAD for word in head.split()]
    with_alone = table([entry(None, "alone", "alone", measured(300, 600)), *rows])
    assert "100us: gemlet" in with_alone.splitlines()[2]
    assert " 2.00 " in with_alone.splitlines()[2]


def test_requests_of_the_warm_up_do_not_count() -> None:
    requests = Client([])
    requests.done = Completed([(0.5, 1), (1.2, 2), (1.4, 3)])
    requests.latencies_us = [100.0, 300_000.0, 200.0]
    assert arrived_after(requests, 1.0) == [200.0]
