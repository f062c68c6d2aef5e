"""Starts a per-user daemon when `gemlet run` finds none. Standard library only.

Two `gemlet run` at once start one daemon: the starter holds `start.lock`, the other waits for it and then connects.
The daemon is double-forked, because `gemlet run` becomes the user's program, which must not find itself with a child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.daemon.connection import Connection
from gemlet.errors import ConfigError, DaemonError, DaemonUnreachable, GemletError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from gemlet.daemon.address import Endpoint

START_SECONDS = 20.0
BACK_SECONDS = 10.0  # that a daemon which was killed is given to be back: as long as its programs wait for it
IDLE_EXIT_SECONDS = 600.0
FAREWELL_SECONDS = 1.0
GONE_SECONDS = 3.0
READY = b"ready\n"
LOG_TAIL_LINES = 5
LOG_ERROR_LINES = 40
KEPT = (
    "GEMLET_LIB_DIR",
    "GEMLET_CONFIG",
    "GEMLET_MPS_CONTROL",
    "GEMLET_SIM_PROFILE",  # daemon and programs share one machine, and the first of them makes it
    "GEMLET_SIM_DEVICES",
)
RELATIVE = ("GEMLET_LIB_DIR", "GEMLET_CONFIG", "GEMLET_MPS_CONTROL", "GEMLET_SIM_PROFILE")
DROPPED = ("LD_PRELOAD", "NOTIFY_SOCKET")


def find_or_start(
    endpoints: list[Endpoint], *, idle_exit: float = IDLE_EXIT_SECONDS, configured: bool = True
) -> Connection:
    """Connects to the first reachable of ``endpoints``; starts a daemon at the last one if there is none.

    ``configured``: whether one that is started reads the user's configuration.

    The system's daemon that was killed, or is about to listen, is waited for: one of this user's own beside it would
    know nothing of the others' programs, nor they of this one's. One that was started for a request it then refuses
    goes again, unless somebody else uses it by then.
    Raises `DaemonError` with the last lines of the daemon's log if it does not come up.
    """
    for endpoint in endpoints:
        with contextlib.suppress(DaemonUnreachable):
            return Connection(endpoint)
    endpoint = endpoints[-1]
    if endpoint.kind not in ("user", "simulated"):
        return Connection(endpoint)  # raises: a daemon that was named is not ours to start
    missing = next((each for each in endpoints if each.kind == "system" and each.is_expected()), None)
    if missing is not None and (found := _await_back(missing)) is not None:
        return found
    if endpoint.unusable is not None:
        return Connection(endpoint)  # raises
    endpoint.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_starter(endpoint.directory / "start.lock"):
        with contextlib.suppress(DaemonUnreachable):
            return Connection(endpoint)  # the other starter was faster
        start(endpoint, idle_exit=idle_exit, configured=configured)
        started = _Started(endpoint)
        started.in_place_of = missing
        return started


def _await_back(endpoint: Endpoint) -> Connection | None:
    give_up = time.monotonic() + BACK_SECONDS
    while endpoint.is_expected():
        with contextlib.suppress(DaemonUnreachable):
            return Connection(endpoint)
        if time.monotonic() > give_up:
            break
        time.sleep(0.05)
    return None


class _Started(Connection):
    """To a daemon that we have started ourselves."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.patience(FAREWELL_SECONDS)
            with contextlib.suppress(GemletError):
                self.call("shutdown", unused=True)
                await_gone(self.endpoint)
        super().__exit__(kind, error, trace)


def await_gone(endpoint: Endpoint) -> None:
    """Returns when the daemon that has been asked to end is gone, or after a while."""
    give_up = time.monotonic() + GONE_SECONDS
    while endpoint.api.exists() and time.monotonic() < give_up:
        time.sleep(0.02)


def start(endpoint: Endpoint, *, idle_exit: float = IDLE_EXIT_SECONDS, configured: bool = True) -> None:
    """Starts a detached daemon at ``endpoint`` and returns when it accepts connections."""
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    command = [sys.executable, "-P", "-m", "gemlet", "daemon", "--runtime-dir", str(endpoint.directory)]
    command += ["--idle-exit", f"{idle_exit:g}", "--ready-fd", str(write_end)]
    if endpoint.kind == "simulated":
        command.append("--simulate")
    if not configured:
        command.append("--no-config")
    _spawn_detached(command, environment=_clean_environment(), log=endpoint.log)
    os.close(write_end)
    try:
        _await_ready(read_end, endpoint)
    finally:
        os.close(read_end)


@contextlib.contextmanager
def _only_starter(path: Path) -> Iterator[None]:
    # For reading, too: a FIFO of that name is not waited for.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0) as lock:
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise DaemonError(
                        f"another process has been starting a daemon for {START_SECONDS:.0f} s", hint=f"see {path}"
                    ) from None
                time.sleep(0.02)
        yield


def _clean_environment() -> dict[str, str]:
    # The daemon must neither preload the hook nor inherit the options and the group of the command that started it.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not (name in DROPPED or name.startswith(("GEMLET_", "GEMINI_", "CUDA_")))
    }
    for name in RELATIVE:  # to where the command was given; the daemon lives in /
        if "/" in (value := environment.get(name, "")) or (value and name == "GEMLET_CONFIG"):
            environment[name] = os.path.abspath(os.path.expanduser(value))  # noqa: PTH100, PTH111
    # `gemlet run` may have been found through a path entry that is not in PYTHONPATH (a source checkout).
    package_parent = str(Path(__file__).absolute().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([package_parent, *filter(None, [environment.get("PYTHONPATH")])])
    return environment


def _spawn_detached(command: list[str], *, environment: dict[str, str], log: Path) -> None:
    from gemlet.daemon.fresh_process import start_afresh

    child = os.fork()
    if child:
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored, the kernel has reaped it
            os.waitpid(child, 0)
        return
    try:  # in the child: only what cannot fail half-way, then exec; never return into the caller's code
        os.setsid()
        if os.fork():
            os._exit(0)
        os.umask(0o077)
        os.chdir("/")
        start_afresh()
        null = os.open(os.devnull, os.O_RDONLY)
        # O_NONBLOCK: a FIFO of that name is not waited for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        output = os.open(log, flags, 0o600)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        os.execve(command[0], command, environment)
    finally:
        os._exit(127)


def _await_ready(pipe: int, endpoint: Endpoint) -> None:
    from gemlet.readiness import await_readable

    give_up = time.monotonic() + START_SECONDS
    answer = b""
    while len(answer) < len(READY):
        if not await_readable([pipe], give_up - time.monotonic()):
            raise DaemonError(f"the daemon did not start within {START_SECONDS:.0f} s", hint=log_tail(endpoint.log))
        chunk = os.read(pipe, len(READY))
        if not chunk:
            raise DaemonError("the daemon did not start", hint=log_tail(endpoint.log))
        answer += chunk


def log_tail(log: Path) -> str:
    """The last lines of a daemon's log, for an error's hint: all of its last errors, if it ended with some."""
    from gemlet.config.text_file import MAX_BYTES, read_bytes

    try:
        lines = _last_of(read_bytes(log, MAX_BYTES).decode(errors="replace").splitlines())
    except OSError as error:
        return f"its log {log} cannot be read: {error.strerror}"
    except ConfigError as error:
        return f"its log {error}"
    return "\n      ".join([f"the end of {log}:", *lines]) if lines else _why_empty(log)


def _last_of(lines: list[str]) -> list[str]:
    # A hint without its error says nothing, and a configuration has all of its errors reported at once.
    record = max((at for at, line in enumerate(lines) if line[:4].isdigit() and line[4:5] == "-"), default=-1)
    error = next((at for at in range(record + 1, len(lines)) if lines[at].startswith("error: ")), None)
    return lines[-LOG_TAIL_LINES:] if error is None else lines[error : error + LOG_ERROR_LINES]


def _why_empty(log: Path) -> str:
    """A daemon that can write nothing cannot say why."""
    here = os.statvfs(log.parent)
    if here.f_blocks and not here.f_bavail:
        return f"{log.parent} is on a full disk; GEMLET_RUNTIME_DIR names another place"
    return f"its log {log} is empty"
