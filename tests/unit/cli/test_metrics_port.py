"""Where a daemon's metrics come from: the option, or the configuration."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from gemlet.cli.daemon import _configured, serving_metrics
from gemlet.config import files
from gemlet.config.render import render
from gemlet.daemon.configuration import ConfigurationFile
from gemlet.errors import ConfigError, GemletError


@pytest.fixture
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def configured_port(path):
    return _configured(ConfigurationFile(str(path) if path else None, optional=True)).metrics_port


def test_the_configured_port_serves(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    path = tmp_path / "gemlet.toml"
    path.write_text(f"[daemon]\nmetrics_port = {number}\n")
    assert files.parse(render(files.load(path)), "gemlet.toml").metrics_port == number
    with serving_metrics(lambda: None, None, configured=configured_port(path)):
        assert urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics", timeout=60).status == 200


def test_a_configured_port_that_is_taken_keeps_no_program_from_running(port, caplog):
    with serving_metrics(lambda: None, None, configured=port):
        pass
    assert "cannot be used" in caplog.text
    with pytest.raises(GemletError, match="cannot be used"), serving_metrics(lambda: None, port):
        pass


def test_no_port_is_no_server(tmp_path):
    assert configured_port(None) is None
    assert configured_port(tmp_path / "none.toml") is None
    (tmp_path / "wrong.toml").write_text("x")
    assert configured_port(tmp_path / "wrong.toml") is None
    with serving_metrics(lambda: None, None):
        pass


@pytest.mark.parametrize("value", ["0", "65536", "true", '"9532"'])
def test_what_is_no_port(value):
    with pytest.raises(ConfigError, match="expected a port"):
        files.parse(f"[daemon]\nmetrics_port = {value}", "gemlet.toml")
