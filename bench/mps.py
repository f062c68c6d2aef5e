"""A control daemon of NVIDIA MPS for one benchmark: in a directory of its own, stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINARY = "nvidia-cuda-mps-control"
PID_FILE = f"{BINARY}.pid"  # in the pipe directory
QUIT_SECONDS = 5  # the daemon's own patience with servers that still have clients


class MpsError(RuntimeError):
    """MPS is not to be had; says why."""


class ControlDaemon:
    """Starts it on entry, stops it on exit. ``env`` is what makes a program its client.

    The binary is searched in ``folders`` (the simulated machine's is beside its libraries) or, without any, in PATH.
    Raises MpsError.
    """

    def __init__(self, env: Mapping[str, str], folders: Sequence[Path] = ()) -> None:
        path = os.pathsep.join([*map(str, folders), env.get("PATH", os.defpath)])
        found = shutil.which(BINARY, path=path)
        if folders and found and Path(found).parent not in folders:
            found = None  # a simulated machine has no use for NVIDIA's
        if found is None:
            raise MpsError(f"{BINARY} was not found in {path}")
        self._binary = found
        self._base = dict(env)
        self._folder: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        assert self._folder
        directories = {"CUDA_MPS_PIPE_DIRECTORY": self._folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": self._folder / "log"}
        return self._base | {name: str(directory) for name, directory in directories.items()}

    def __enter__(self) -> ControlDaemon:
        # Below /tmp whatever TMPDIR says: the path of a Unix socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="gemlet-mps-", dir="/tmp"))
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(mode=0o700)
        try:
            started = subprocess.run(
                [self._binary, "-d"], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=30, check=False,
            )  # fmt: skip
            if started.returncode != 0:
                raise MpsError(f"{self._binary} -d: exit code {started.returncode}: {words(started)}")
            self._wait_until_it_listens()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def control(self, command: str, limit: float = 30) -> str:
        """What the daemon answers. Raises MpsError, and subprocess.TimeoutExpired."""
        done = subprocess.run(
            [self._binary],
            env=self.env,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if done.returncode != 0:
            raise MpsError(f"{BINARY}: {command}: {words(done)}")
        return done.stdout.strip()

    def pid(self) -> int | None:
        """Of the daemon; None when it has written none or does not run."""
        assert self._folder
        try:
            pid = int((self._folder / "pipe" / PID_FILE).read_text().strip())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    def _wait_until_it_listens(self, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(MpsError, subprocess.TimeoutExpired):
                self.control("get_default_active_thread_percentage", limit=seconds)
                return
            if time.monotonic() > deadline:
                raise MpsError(f"{BINARY} started but does not answer: {self._log()}")
            time.sleep(0.1)

    def _log(self) -> str:
        assert self._folder
        texts = [path.read_text(errors="replace") for path in sorted((self._folder / "log").glob("*.log"))]
        return "".join(texts)[-500:].strip() or "its log is empty"

    def _end(self) -> None:
        """Asks it to quit; ends the processes that are left by signal; removes its directory."""
        assert self._folder
        pid = self.pid()
        if pid is not None:
            servers = self._servers()
            with contextlib.suppress(MpsError, subprocess.TimeoutExpired):
                self.control(f"quit -t {QUIT_SECONDS}", limit=QUIT_SECONDS + 10)
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                left = [p for p in (pid, *servers) if alive(p)]
                for p in left if number else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(p, number)
                if wait_for_end(left, 5):
                    break
            else:
                raise MpsError(f"{BINARY} (process {pid}) does not end")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _servers(self) -> list[int]:
        with contextlib.suppress(MpsError, subprocess.TimeoutExpired, ValueError):
            return [int(line) for line in self.control("get_server_list").split()]
        return []


def words(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).strip() or "no words"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: Sequence[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(p) for p in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
