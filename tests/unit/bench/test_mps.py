"""Where there is no control daemon to start, it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mps import BINARY, ControlDaemon, MpsError

if TYPE_CHECKING:
    from pathlib import Path


def script(folder: Path, text: str) -> None:
    path = folder / BINARY
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_no_binary_is_an_error_that_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match=str(tmp_path)):
        ControlDaemon({"PATH": str(tmp_path)})


def test_a_simulated_machine_does_not_take_the_real_one(tmp_path: Path) -> None:
    real, simulated = tmp_path / "real", tmp_path / "sim"
    for folder in (real, simulated):
        folder.mkdir()
    script(real, "exit 0")
    with pytest.raises(MpsError, match="not found"):
        ControlDaemon({"PATH": str(real)}, [simulated])


def test_a_daemon_that_does_not_start_is_an_error_with_its_words(tmp_path: Path) -> None:
    script(tmp_path, "echo no device here; exit 1")
    with pytest.raises(MpsError, match="no device here"), ControlDaemon({"PATH": f"{tmp_path}:/bin:/usr/bin"}):
        pass
