"""The pointer map and the size model, in their own native test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.hook.conftest import Built


def test_pointer_map_and_sizes(lines: Callable[..., list[str]]) -> None:
    assert lines("accounting_test", preload=()) == []


def test_the_pointer_map_is_cheap_however_much_is_in_it(built: Built) -> None:
    pairs = 10_000  # an insert and a removal each, beside 100,000 entries
    counted = built.instructions("accounting_test", str(pairs), function="insert_and_remove", preload=())
    assert counted / pairs < 600  # 274 when this was written, and 60 ns
