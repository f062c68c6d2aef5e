"""Programs of a window on cores of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench import cores

if TYPE_CHECKING:
    from pathlib import Path


def system(path: Path, cores_of_cpus: list[int]) -> Path:
    for cpu, core in enumerate(cores_of_cpus):
        folder = path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core}\n")
    return path


@pytest.mark.parametrize(
    ("cores_of_cpus", "programs", "expected"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        ([0, 1, 2, 3, 0, 1, 2, 3], 4, [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        ([0, 0, 1, 1], 3, []),
        ([0, 1, 2, 3], 4, []),
        ([0, 1, 2, 3, 4], 2, [{0, 1}, {2, 3}]),
    ],
)
def test_no_two_programs_share_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores_of_cpus: list[int], programs: int, expected: list[set[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(len(cores_of_cpus))))
    assert cores.split(programs, system(tmp_path, cores_of_cpus)) == expected


def test_a_system_that_says_nothing_has_a_core_for_each_cpu(tmp_path: Path) -> None:
    assert cores.core_of(7, tmp_path) == (-1, 7)


def test_a_process_and_what_it_started_keep_to_their_cpus() -> None:
    one = {min(os.sched_getaffinity(0))}
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        cores.keep_to(process.pid, one)
        children = [process.pid, *(child.pid for child in cores.psutil.Process(process.pid).children())]
        assert len(children) == 2
        assert all(os.sched_getaffinity(pid) == one for pid in children)
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait()
