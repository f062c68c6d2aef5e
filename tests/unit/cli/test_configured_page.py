"""The page that a daemon starts by its configuration: what keeps it from starting keeps no program from running."""

from __future__ import annotations

import sys

from gemlet.cli.daemon import serving_page
from gemlet.daemon.address import Endpoint


def test_a_page_that_cannot_be_started_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    endpoint = Endpoint(tmp_path, "user")
    with serving_page(endpoint, "127.0.0.1:1"):
        assert not endpoint.web_link.exists()
    assert "the page cannot be started as this user" in caplog.text


def test_no_page_is_no_process(tmp_path):
    with serving_page(Endpoint(tmp_path, "user"), None):
        assert not list(tmp_path.iterdir())
