"""Cores of the host for each program of a window: two that share one core by chance ran at 0.58 of their speed.

The kernel places busy threads where it likes, also on two hardware threads of one core, and leaves them there for
seconds. A program that is bound by its host then shows where it was placed instead of how the GPU was shared.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

SYSTEM = Path("/sys/devices/system/cpu")


def core_of(cpu: int, system: Path = SYSTEM) -> tuple[int, int]:
    """(package, core) of a hardware thread; each for itself where the system does not say."""
    folder = system / f"cpu{cpu}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return -1, cpu


def split(programs: int, system: Path = SYSTEM) -> list[set[int]]:
    """Whole cores for each, as many for one as for another; empty if there is no whole core for each."""
    cores: dict[tuple[int, int], set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        cores.setdefault(core_of(cpu, system), set()).add(cpu)
    each = len(cores) // programs if programs else 0
    if each == 0 or (each == 1 and all(len(core) == 1 for core in cores.values())):
        return []  # a program has more threads than one
    found = list(cores.values())
    return [set().union(*found[number * each : (number + 1) * each]) for number in range(programs)]


def keep_to(pid: int, cpus: set[int]) -> None:
    """All threads that the process and its descendants have now, and with them those that they start."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                for thread in one.threads():
                    with contextlib.suppress(OSError):
                        os.sched_setaffinity(thread.id, cpus)
