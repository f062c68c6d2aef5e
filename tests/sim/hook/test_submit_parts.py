"""When a pause ends a turn, which threads wait for the device, and which samples are believed: in a native test of
their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.timeout(300)
def test_patience_waits_and_estimates(lines: Callable[..., list[str]]) -> None:
    assert lines("submit_test", preload=()) == []
