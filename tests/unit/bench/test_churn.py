"""What bench/churn.py says of a run."""

from __future__ import annotations

import pytest

from bench import churn

FOUND = {
    "wrong": [],
    "unanswered": [],
    "neighbours": {"lost": []},
    "executors_ended": 1,
    "served_again": True,
}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"wrong": ["plus: 1 became 3 by plus 1"]}, "no reply wrong"),
        ({"unanswered": ["TimeoutError"]}, "everything answered"),
        ({"neighbours": {"lost": ["503"] * 5}}, "neighbours lose what was in flight at most"),
        ({"served_again": False}, "all served afterwards"),
    ],
)
def test_a_fault_fails_its_verdict_alone(change, verdict):
    assert all(churn.verdicts(FOUND).values())
    failed = [name for name, held in churn.verdicts(FOUND | change).items() if not held]
    assert failed == [verdict]
