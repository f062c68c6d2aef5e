"""Without a control daemon to start, it says so and leaves nothing behind."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from bench.mps import ControlDaemon, MpsError
from gemlet.devices.mps import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path


def script(folder: Path, text: str) -> None:
    path = folder / PROGRAM
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMLET_MPS_CONTROL", raising=False)


def test_no_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError, match="not on PATH"):
        ControlDaemon({}, None)


def test_a_simulated_machine_does_not_take_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    simulated = tmp_path / "sim"
    simulated.mkdir()
    with pytest.raises(MpsError, match="the simulated machine has no"):
        ControlDaemon({}, simulated)


def test_a_daemon_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "echo no device here; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    folder = tmp_path / "daemon"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(folder))
    with pytest.raises(MpsError, match="exit code 1"), ControlDaemon({}, None):
        pass
    assert not folder.exists()
