"""A control daemon of NVIDIA MPS for one benchmark: in a directory of its own, stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

from gemlet.devices.mps import Control, MpsError, control_of, find_program, process

ROOT = Path(__file__).resolve().parent.parent
QUIT_SECONDS = 5  # the daemon's own patience with servers that still have clients


class ControlDaemon:
    """Starts it on entry, stops it on exit. ``env`` is what makes a program its client.

    ``simulated`` is the directory of the simulated machine's libraries, None on a GPU. Raises MpsError.
    """

    def __init__(self, env: Mapping[str, str], simulated: Path | None) -> None:
        named = None if simulated else os.environ.get("GEMLET_MPS_CONTROL")
        self._program = find_program(named, str(simulated) if simulated else None)
        self._base = dict(env)

    def __enter__(self) -> ControlDaemon:
        # Below /tmp whatever TMPDIR says: the path of a Unix socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="gemlet-mps-", dir="/tmp"))
        self._control = ControlOf(self._base, self._program, pipe=self._folder / "pipe", log=self._folder / "log")
        try:
            self._control.start()
            self._control.ask("get_server_list")  # it answers
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def env(self) -> dict[str, str]:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": self._control.pipe, "CUDA_MPS_LOG_DIRECTORY": self._control.log}
        return self._base | {name: str(directory) for name, directory in ours.items()}

    def _end(self) -> None:
        """Asks it to quit; ends by signal what is left; removes its directory. Raises MpsError if it does not end."""
        daemon = control_of(self._control.pipe)
        if daemon:
            pids = [daemon.pid, *self._servers()]
            with contextlib.suppress(MpsError):
                self._control.quit(seconds=QUIT_SECONDS)
            if not ended(pids, QUIT_SECONDS + 5) and not killed(pids):
                raise MpsError(f"MPS's control daemon, process {daemon.pid}, does not end")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _servers(self) -> list[int]:
        with contextlib.suppress(MpsError):
            return [server.pid for server in self._control.servers()]
        return []


class ControlOf(Control):
    """With an environment of its own: a simulated machine is found through it."""

    def __init__(self, env: Mapping[str, str], program: str, *, pipe: Path, log: Path) -> None:
        super().__init__(program, pipe=pipe, log=log)
        self._more = {name: value for name, value in env.items() if name.startswith(("GEMLET_SIM", "LD_LIBRARY_PATH"))}

    def environment(self) -> dict[str, str]:
        return super().environment() | self._more


def killed(pids: Sequence[int]) -> bool:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if ended(pids, 5):
            return True
    return False


def ended(pids: Sequence[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(process(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
