"""A turn ends where a test wants that, not where the machine is busy."""

from __future__ import annotations

import pytest

from gemlet.serve.server.frontend import grpc_connection, http_connection


@pytest.fixture(autouse=True)
def _turns_have_no_end(monkeypatch):
    for module in (http_connection, grpc_connection):
        monkeypatch.setattr(module, "TURN_S", 3600.0)
