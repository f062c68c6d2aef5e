"""A private simulated machine for each test, and ways to run real CUDA programs on it.

Programs run in processes of their own: the driver is found by LD_LIBRARY_PATH, as on a machine with a GPU.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compiled import compiled_text, cuda_include
from tests.sim.driver import mps_machine

FOLDER = Path(__file__).parent
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = FOLDER.parents[2]


def library_folder() -> Path:
    """Folder of the simulated libcuda.so.1."""
    products = Path(os.environ.get("GEMLET_LIB_DIR", ROOT / "src" / "gemlet" / "_lib"))
    return products / "sim"


@dataclass
class SimulatedMachine:
    """One simulated machine: its environment, and programs on it."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, script: str, *arguments: object, **extra_env: str) -> subprocess.Popen[str]:
        """Starts a Python program with the names of simulated_cuda.py imported; the caller waits for it."""
        program = "from simulated_cuda import *\n" + textwrap.dedent(script)
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=self.env | extra_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """Ends what a test left running."""
        for process in self.started:
            process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait(timeout=60)

    def run(self, script: str, *arguments: object, **extra_env: str) -> str:
        """Runs a Python program to its successful end; what it printed."""
        process = self.start(script, *arguments, **extra_env)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
        return out

    def compile(self, source: str) -> Path:
        """Compiles a C program against cuda.h and our libcuda.so.1."""
        options = ("-O1", "-Wall", f"-I{cuda_include()}", f"-I{FOLDER}", library_folder() / "libcuda.so.1", "-lpthread")
        return compiled_text("cc", *options, text=source)

    def run_c(self, source: str, *arguments: object, **extra_env: str) -> subprocess.CompletedProcess[str]:
        """Compiles and runs a C program."""
        program = self.compile(source)
        return subprocess.run(
            [program, *map(str, arguments)],
            env=self.env | extra_env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def truth(self, function: str, pid: int) -> int:
        """Asks the machine itself: gemletSimDeviceTime or gemletSimMemory of a process on device 0."""
        script = f"print(truth('{function}', {pid}))"
        return int(self.run(script))


@pytest.fixture
def machine(tmp_path: Path, library_path: Path) -> Iterator[SimulatedMachine]:
    """A machine nobody else uses, with one H200."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "CUDA_MPS_")) and k != "LD_PRELOAD"}
    env["GEMLET_SIM_DIR"] = str(tmp_path / "machine")
    env["LD_LIBRARY_PATH"] = str(library_path.parent)
    env["PYTHONPATH"] = str(FOLDER)
    simulated = SimulatedMachine(tmp_path, env)
    yield simulated
    simulated.end_all()


@pytest.fixture
def mps(machine: SimulatedMachine) -> Iterator[mps_machine.Mps]:
    """The machine's MPS, not started yet."""
    control = mps_machine.make(machine.folder, library_folder(), machine.env)
    yield control
    control.end()


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The simulated libcuda.so.1."""
    path = library_folder() / "libcuda.so.1"
    if not path.is_file():
        pytest.skip(f"no simulated driver in {library_folder()}; build it, or set GEMLET_LIB_DIR")
    return path


@pytest.fixture(scope="session")
def library(library_path: Path) -> ctypes.CDLL:
    """The simulated libcuda in this process, for calls that need no device."""
    return ctypes.CDLL(str(library_path))
