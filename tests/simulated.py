"""The simulated machine for tests that run programs on it; without its driver they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machine import Machine
from gemlet import paths


def need_driver() -> None:
    if not (Path(paths.lib_dir()) / "sim/libcuda.so.1").exists():
        pytest.skip("the simulated driver is not built: make native")


def machine(workdir: Path, *, devices: int | None = None) -> Machine:
    """``devices``: how many; None for as many as its profile says."""
    need_driver()
    made = Machine(simulate=True, workdir=workdir)
    if devices is not None:
        made.env["GEMLET_SIM_DEVICES"] = str(devices)
    return made
