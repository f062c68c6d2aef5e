"""What `make` says where no Python that gemlet runs on is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci" / "prerequisites"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="without a compiler, that is said first")


def refused(python) -> str:
    done = subprocess.run([SCRIPT, str(python)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    return done.stderr


def test_a_python_that_is_not_there_is_named():
    assert "python3.99" in refused("python3.99").splitlines()[0]


def test_a_python_that_does_not_run(tmp_path):
    python = tmp_path / "python3.12"
    python.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    python.chmod(0o755)
    said = refused(python)
    assert f"error: {python} does not run" in said
    assert "no such version" in said


def test_a_python_that_is_too_old(tmp_path):
    python = tmp_path / "python3.9"
    python.write_text(
        '#!/bin/sh\nif [ "$1" = -V ]; then echo Python 3.9.2; exit; fi\nif [ "$1" = -c ]; then exit 1; fi\n'
    )
    python.chmod(0o755)
    assert f"error: {python} is Python 3.9.2, gemlet needs 3.11 or newer" in refused(python)
