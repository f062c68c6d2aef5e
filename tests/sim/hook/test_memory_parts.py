"""The pointer map, the size model and the lock of a ledger, in native tests of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.hook.conftest import Built


def test_pointer_map_and_sizes(lines: Callable[..., list[str]]) -> None:
    assert lines("accounting_test", preload=()) == []


def test_a_member_that_is_stopped_with_the_lock_neither_blocks_its_group_nor_passes_its_limit(
    lines: Callable[..., list[str]],
) -> None:
    assert lines("ledger_lock_test", preload=()) == []


def test_the_pointer_map_is_cheap_however_much_is_in_it(built: Built) -> None:
    pairs = 10_000  # an insert and a removal each, beside 100,000 entries
    counted = built.instructions("accounting_test", str(pairs), function="insert_and_remove", preload=())
    assert counted / pairs < 600  # 274 when this was written, and 60 ns
