"""The unit of the system's daemon, judged by systemd itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "packaging/systemd"


@pytest.fixture
def verify(tmp_path):
    """Verifies units as they lie in a root of their own, in which every program they start is there."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")

    def verify(text: str, *others: Path) -> str:
        units, programs = tmp_path / "usr/lib/systemd/system", tmp_path / "usr/bin"
        for folder in (units, programs, tmp_path / "bin"):
            folder.mkdir(parents=True, exist_ok=True)
        for file in (programs / "gemlet", tmp_path / "bin/kill"):
            file.write_text("#!/bin/sh\n")
            file.chmod(0o755)
        for name in ("sysinit", "basic", "shutdown", "multi-user"):
            (units / f"{name}.target").write_text("[Unit]\nDescription=of the test\n")
        (units / "gemlet.service").write_text(text)
        for other in others:
            shutil.copy(other, units)
        names = ["gemlet.service", *(other.name for other in others)]
        command = [program, "verify", f"--root={tmp_path}", "--man=no", *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    return verify


def test_systemd_accepts_it(verify):
    assert verify((UNITS / "gemlet.service").read_text()) == ""


def test_systemd_accepts_the_examples(verify):
    examples = sorted((UNITS / "examples").iterdir())
    assert len(examples) == 2
    assert verify((UNITS / "gemlet.service").read_text(), *examples) == ""


def test_a_mistake_would_be_seen(verify):
    assert "Typo" in verify((UNITS / "gemlet.service").read_text().replace("NoNewPrivileges", "Typo"))
