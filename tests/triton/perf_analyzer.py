"""perf_analyzer, from the wheel of tritonclient 2.50."""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
from pathlib import Path

from tests.triton.triton_server import INSTALLED

PROGRAM = INSTALLED / "perf" / "bin" / "perf_analyzer"
LIBRARIES = INSTALLED / "libb64" / "usr" / "lib" / "x86_64-linux-gnu"
THERE = PROGRAM.exists() and LIBRARIES.exists()


def measured(protocol, address, model, *, at_a_time=1, rate=None, requests, shared_memory="none"):
    """Its row of columns, as text. ``address``: HOST:PORT; rate: requests/s, Poisson, in place of so many at a time.

    Raises RuntimeError with its words if it fails.
    """
    load = ["--concurrency-range", str(at_a_time)]
    if rate is not None:
        load = ["--request-rate-range", f"{rate:g}", "--request-distribution", "poisson"]
    runtime = list(INSTALLED.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib"))
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, (LIBRARIES, *runtime)))}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.csv")
        done = subprocess.run(
            [
                PROGRAM, "-m", model, "-u", address, "-i", protocol, *load,
                "--measurement-mode", "count_windows", "--measurement-request-count", str(requests),
                "--shared-memory", shared_memory, "-s", "999", "-r", "3", "-f", table,
            ],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if not table.exists():
            raise RuntimeError(f"perf_analyzer ended with {done.returncode}: {done.stdout}{done.stderr}")
        (row,) = csv.DictReader(table.read_text().splitlines())
    return row
