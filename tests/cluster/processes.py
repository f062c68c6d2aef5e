"""Where the tests' cluster lives, the processes it is made of, and waiting for what they do."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN = Path(os.environ.get("GEMLET_CLUSTER_CACHE", "/nonexistent")) / "bin"
RUN = Path(os.environ.get("GEMLET_CLUSTER_RUN", "/nonexistent"))


# Only what hangs takes this long: on a machine that is busy with other work everything takes several times as long.
LIMIT = 240.0


class Failed(AssertionError):
    """Something did not happen in time."""


def eventually(condition: Callable[[], Any], what: str, seconds: float = LIMIT) -> Any:
    """The first true value of ``condition``. ``seconds``: for what takes longer even on an idle machine."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return value


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: Rss, and Pss, in which shared pages are divided among their processes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


class Process:
    """One part of the cluster, logging to a file of its own. ``prefix``: what puts it into another namespace."""

    def __init__(self, name: str, *command: object, prefix: Sequence[object] = (), **environment: str) -> None:
        self.name = name
        self.command = [str(part) for part in (*prefix, *command)]
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMLET_")} | environment
        self.log = RUN / "log" / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        self.log.parent.mkdir(exist_ok=True)
        log: IO[bytes]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._environment)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        self._process.kill() if kill else self._process.terminate()
        self._process.wait(30)
        self._process = None
