"""What bench/gaiagpu.py draws from logs of completed work."""

from __future__ import annotations

import argparse
import math

import pytest

from bench import gaiagpu
from bench.machine import Client
from bench.windows import Completed


def test_a_program_that_needs_less_than_its_part_is_due_its_time_alone() -> None:
    assert gaiagpu.due(2, 0.4) == 1
    assert gaiagpu.due(8, 0.5) == 4
    assert gaiagpu.due(3, 1.0) == 3


def test_execution_time_ends_with_the_fixed_work() -> None:
    done = Completed([(0.5, 0.1), (1.0, 0.2), (1.5, 0.3)])
    assert gaiagpu.finished(done, 0.2) == 1.0
    assert gaiagpu.finished(done, 0.25) == 1.5
    assert math.isnan(gaiagpu.finished(done, 0.31))
    assert math.isnan(gaiagpu.worst([1.0, math.nan, 2.0]))
    assert gaiagpu.worst([1.0, 2.0]) == 2.0


def test_what_was_held_counts_from_the_scenarios_beginning() -> None:
    client = Client(["fill"], "a", begin=0.1)
    client.rows = [(0, 0), (100_000_000, 50), (150_000_000, 0)]
    assert gaiagpu.held_line(client, 100, 0.4) == [
        (0.0, 0.0), (0.05, 0.0), (0.1, 0.0), (0.15, 0.0), (0.2, 0.5), (0.25, 0.0), (0.3, 0.0), (0.35, 0.0), (0.4, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["0", "2,", "1,x", "65"])
def test_numbers_of_parts(text: str) -> None:
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        gaiagpu.numbers(text)
    assert gaiagpu.numbers("1,8") == (1, 8)
