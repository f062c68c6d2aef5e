"""Hooks of other versions than this one's, linked from the same objects with another number of wire.h."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.compiled import locked

BUILD = Path(__file__).resolve().parents[1] / "build" / "native"


def other_hook(which: Literal["older", "newer"]) -> Path:
    """The hook of the version before or after. Skips the test where the native parts were not built in this tree."""
    if not (BUILD / "build.ninja").exists():
        pytest.skip(f"{BUILD} does not exist: run `make native` first")
    beside = Path(sys.executable).with_name("cmake")
    cmake = str(beside) if beside.exists() else shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    folder = BUILD / "hook-tests"
    with locked(folder):
        done = subprocess.run(
            [cmake, "--build", str(BUILD), "--target", f"gemhook_{which}"], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / f"hook-{which}" / "libgemhook.so.1"
