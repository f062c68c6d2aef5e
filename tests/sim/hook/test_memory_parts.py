"""The pointer map and the size model, in their own native test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def test_pointer_map_and_sizes(lines: Callable[..., list[str]]) -> None:
    (cost,) = lines("books_test", preload=())
    assert float(cost.removeprefix("ns ")) < 600  # an insert and a removal; 60 on a quiet machine
