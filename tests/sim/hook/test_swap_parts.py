"""The parts of moving memory that need no driver: tests/sim/hook/native/swap_test.cpp, arena_test.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def test_chunks_pieces_and_gate(lines: Callable[..., list[str]]) -> None:
    (positions,) = lines("swap_test", preload=())
    assert int(positions.removeprefix("positions ")) >= 50


def test_the_host_side(lines: Callable[..., list[str]]) -> None:
    assert lines("arena_test", preload=()) == ["ok"]
