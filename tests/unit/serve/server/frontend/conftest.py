"""A turn ends where a test wants that, not where the machine is busy."""

from __future__ import annotations

import pytest

from gemlet import turns


@pytest.fixture(autouse=True)
def _turns_have_no_end(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 3600.0)
    monkeypatch.setattr(turns, "SMALL_S", 36000.0)
