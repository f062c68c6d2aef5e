"""The page that a daemon starts by its configuration: what keeps it from starting keeps no program from running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    found = []

    class Kept(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            found.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    return found


def test_a_page_that_is_stopped_does_not_keep_the_daemon_from_ending(tmp_path, started):
    with serving_page(Endpoint(tmp_path, "user"), "127.0.0.1:0"):
        page = os.pidfd_open(started[0])
        signal.pidfd_send_signal(page, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(page, signal.SIGCONT)
    os.close(page)


def test_the_page_of_a_system_daemon_that_is_not_root_is_its_users(tmp_path, monkeypatch, caplog, started):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with serving_page(Endpoint(tmp_path, "system"), "127.0.0.1:0"):
        assert Path("/proc", str(started[0])).stat().st_uid == os.getuid()
    assert not caplog.text
