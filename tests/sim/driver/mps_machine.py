"""The simulated nvidia-cuda-mps-control of one test, with directories of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def deadline(seconds: float) -> Iterator[None]:
    """Repeats a loop's body with short pauses; fails when the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    raise AssertionError(f"did not happen within {seconds} s")


@dataclass
class Mps:
    """A pipe and a log directory, and the program that works on them."""

    program: Path
    pipe: Path
    log: Path
    machine_env: dict[str, str]
    foreground: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """What makes a program of the machine a client."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def control(
        self, *options: str, commands: str = "", pass_fds: tuple[int, ...] = (), **extra_env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs nvidia-cuda-mps-control to its end."""
        return subprocess.run(
            [self.program, *options],
            env=self.machine_env | self.env | extra_env,
            input=commands,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            pass_fds=pass_fds,
        )

    def ask(self, command: str) -> str:
        """The daemon's answer, without the newline at its end."""
        done = self.control(commands=command + "\n")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.removesuffix("\n")

    def start(self, **extra_env: str) -> Mps:
        """Starts the daemon in the background."""
        started = self.control("-d", **extra_env)
        assert started.returncode == 0, started.stdout + started.stderr
        return self

    def start_in_foreground(self) -> subprocess.Popen[str]:
        """Starts the daemon with -f; returns when it answers."""
        process = subprocess.Popen([self.program, "-f"], env=self.machine_env | self.env, text=True)
        self.foreground.append(process)
        for _ in deadline(60):
            if self.control(commands="ps\n").returncode == 0:
                break
        return process

    def daemon_pid(self) -> int:
        """From the pid file."""
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def clients(self) -> list[int]:
        """Pids of the clients, as get_client_list has them; empty without a server."""
        server = self.ask("get_server_list")
        return [int(pid) for pid in self.ask(f"get_client_list {server}").split()] if server else []

    def end(self) -> None:
        """Ends the daemon, if there is one."""
        with contextlib.suppress(OSError):
            self.control(commands="quit -t 0\n")
        for process in self.foreground:
            process.kill()
            process.wait(timeout=60)


def make(folder: Path, libraries: Path, machine_env: dict[str, str]) -> Mps:
    """A daemon's directories in ``folder``; the program is in ``libraries``."""
    env = {k: v for k, v in machine_env.items() if not k.startswith("CUDA_MPS_")}
    return Mps(libraries / "nvidia-cuda-mps-control", folder / "pipe", folder / "log", {**env, "HOME": os.sep})
