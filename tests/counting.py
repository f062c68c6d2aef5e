"""What programs do, counted: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType


def calls(act: Callable[[], object]) -> int:
    """How many functions ``act`` calls in this thread, those written in C included, and those of a collection not."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    collecting = gc.isenabled()
    gc.disable()  # whatever other tests left would be finalized, and told to gc.callbacks, in here
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return count - 1  # setprofile itself


def instructions(command: Sequence[str], function: str, env: Mapping[str, str]) -> int:
    """How many the program executes in ``function`` and what that calls. Skips the test where valgrind is missing."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind, which counts instructions, is not installed")
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        options = ["--tool=callgrind", f"--toggle-collect={function}", f"--callgrind-out-file={profile}"]
        done = subprocess.run(
            [valgrind, *options, *command], env=dict(env), capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        counted = re.search(r"^(?:summary|totals): (\d+)", profile.read_text(), re.MULTILINE)
    assert counted, f"callgrind wrote no sum\n{done.stderr}"
    assert int(counted[1]), f"{command} never called {function}"
    return int(counted[1])
