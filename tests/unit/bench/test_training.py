"""Losses are compared as far as both runs came, bit by bit."""

from __future__ import annotations

import pytest

from bench.training import same


@pytest.mark.parametrize(
    ("losses", "reference", "identical"),
    [
        (["3f800000", "3f000000"], ["3f800000"], True),
        (["3f800000"], ["3f800000", "3f000000"], True),
        (["3f800000", "3f000001"], ["3f800000", "3f000000"], False),
        ([], ["3f800000"], False),
        ([], [], False),
    ],
)
def test_the_steps_that_both_took_have_the_same_bits(losses: list[str], reference: list[str], identical: bool) -> None:
    assert same(losses, reference) is identical
