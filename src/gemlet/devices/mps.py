"""NVIDIA's Multi-Process Service (MPS) through its documented interface: `nvidia-cuda-mps-control` and its directories.

One *control daemon* lives in a pipe directory and writes its pid there. It starts a *server* for the user of the first
client; *clients* are CUDA programs whose CUDA_MPS_PIPE_DIRECTORY names that directory when they make a context.
Commands go to the control daemon through the standard input of the same program. Source: "Multi-Process Service",
NVIDIA, docs.nvidia.com/deploy/mps, the command interface of version 2, which later versions keep.

Everything blocks, and nothing here changes a compute mode or a control daemon of somebody else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gemlet import paths
from gemlet.devices.started import started, started_at
from gemlet.errors import DeviceError

PROGRAM = "nvidia-cuda-mps-control"
PID_FILE = f"{PROGRAM}.pid"
DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # where every CUDA program looks that is not told otherwise
LONGEST_SOCKET = "control_privileged"  # of the sockets it makes in its pipe directory
MAX_SOCKET_PATH = 107
LONGEST_PID = 32  # bytes of the pid file, blanks included
COMMAND_CHARACTERS = 15  # of a program's name are what the kernel keeps
CLOCK_SECONDS = 2.0  # by which a start and the time of a file may differ: one is known in seconds only
MOST_ANSWER = 1 << 20  # bytes: some hundred thousand pids
MOST_SAID = 500  # characters of an answer in a hint
ASK_SECONDS = 5.0
LIST_SECONDS = 20.0  # for all servers and their clients: a few questions of some milliseconds each
START_SECONDS = 10.0
PID_SECONDS = 2.0  # from the end of `-d` to the pid file
END_SECONDS = 0.5  # for a stopped child to be gone


class MpsError(DeviceError):
    """The control program is missing, fails, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as /proc shows it now.

    ``started``: clock ticks since boot; with it a pid names one process only. 0: not known now.
    """

    pid: int
    uid: int
    command: str
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsServer:
    """One MPS server. ``status`` as the control daemon says, such as ACTIVE or FAULT; empty if it does not say."""

    pid: int
    uid: int
    status: str
    clients: tuple[Process, ...]


def find_program(named: str | None, simulated_directory: str | None) -> str:
    """Path of the control program: ``named``, the simulated machine's, or the one on PATH. Raises `MpsError`."""
    if named:
        found = shutil.which(named)
        if found is None:
            raise MpsError(f"{named} is not a program", hint="correct or unset GEMLET_MPS_CONTROL, which names it")
        return os.path.abspath(found)  # noqa: PTH100  a link keeps its name: the program may look at it
    if simulated_directory is not None:
        found = shutil.which(PROGRAM, path=simulated_directory)
        if found is None:
            hint = "run `make native` in a checkout, or reinstall gemlet"
            raise MpsError(f"the simulated machine has no {PROGRAM} in {simulated_directory}", hint=hint)
        return found
    found = shutil.which(PROGRAM)
    if found is None:
        hint = "it comes with the NVIDIA driver (Debian: nvidia-cuda-mps, Ubuntu: nvidia-compute-utils-VERSION)"
        raise MpsError(f"{PROGRAM} is not on PATH", hint=f"{hint}; GEMLET_MPS_CONTROL names it elsewhere")
    return found


def parse_pids(text: str) -> tuple[int, ...]:
    """The pids of an answer: one a line. Other lines are words for people."""
    lines = (line for line in map(str.strip, text.splitlines()) if len(line) <= LONGEST_PID)
    return tuple(int(line) for line in lines if line.isascii() and line.isdigit() and int(line) > 0)


def parse_server_status(text: str) -> str:
    """The state in an answer of get_server_status, such as ACTIVE; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rpartition(" ")[2].upper() if lines else ""


def _status(pid: int) -> dict[str, list[str]]:
    # Not the owner of the directory: that is root's for a process that must not be traced.
    lines = Path("/proc", str(pid), "status").read_text(errors="replace").splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def user_of(pid: int) -> int | None:
    """The uid of a process; None if it has ended."""
    try:
        return int(_status(pid)["Uid"][1])
    except (OSError, KeyError, IndexError, ValueError):
        return None


def process(pid: int) -> Process | None:
    """The process, or None if it has ended."""
    try:
        status = _status(pid)
        command = Path("/proc", str(pid), "comm").read_text(errors="replace").removesuffix("\n")
    except OSError:
        return None
    try:
        state, uid, threads = status["State"][0], int(status["Uid"][1]), int(status["Threads"][0])
    except (KeyError, IndexError, ValueError):
        return None
    # A zombie has ended, and is not yet collected, if it has no thread but the first.
    if state == "X" or (state == "Z" and threads <= 1):
        return None
    return Process(pid=pid, uid=uid, command=command, started=started(pid, uid))


def same_process(pid: int, began: int) -> Process | None:
    """The process that had this pid and start, as far as that can be told: None if it has ended."""
    found = process(pid)
    return found if found is not None and found.started in (0, began) else None  # 0: of which it is not known


def control_of(pipe_directory: str | os.PathLike[str]) -> Process | None:
    """The living process that wrote the pid file of ``pipe_directory``, or None.

    The file outlives one that was killed, and another process may have the pid by now. The hook looks in the same way,
    but for that.
    """
    try:
        descriptor = paths.open_regular(Path(pipe_directory, PID_FILE))  # the caller may name any directory
    except (OSError, ValueError):
        return None
    try:
        written = os.fstat(descriptor).st_mtime
        text = os.read(descriptor, LONGEST_PID)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    pid = text.strip()
    found = process(int(pid)) if pid.isdigit() and 0 < int(pid) < 2**31 else None
    return found if found is not None and _may_have_written(found, written) else None


def _may_have_written(who: Process, at: float) -> bool:
    """Whether it was there at that time, in seconds since 1970; NVIDIA's program in any case, for clocks are set."""
    began = started_at(who.started)
    return began is None or began <= at + CLOCK_SECONDS or who.command == PROGRAM[:COMMAND_CHARACTERS]


def give_up(child: subprocess.Popen[bytes]) -> None:
    """Ends a process that was started in a session of its own, and what it has started in there."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


class Control:
    """The control daemon of one pipe directory, driven through ``program``."""

    def __init__(self, program: str, *, pipe: Path, log: Path) -> None:
        self.program = program
        self.pipe = pipe
        self.log = log

    def start(self, *, mode: int = 0o700) -> Process:
        """Starts the control daemon in directories of permissions ``mode``. Raises `MpsError`.

        What a dead one left in the pipe directory is removed first.
        """
        socket = self.pipe / LONGEST_SOCKET
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
            # It would start, fail to bind and say nothing.
            raise MpsError(
                f"{self.pipe} is too long for MPS's sockets", hint="set GEMLET_RUNTIME_DIR to a shorter path"
            )
        try:
            shutil.rmtree(self.pipe, ignore_errors=True)
            for directory in (self.pipe, self.log):
                directory.mkdir(mode=mode, parents=True, exist_ok=True)
                directory.chmod(mode)  # whatever the umask is
            with (self.log / "start.log").open("wb") as output:
                code = self._run(["-d"], b"", START_SECONDS, output.fileno())
        except OSError as error:
            raise self._cannot_start(error) from None
        if code != 0:
            raise MpsError(f"{self.program} -d failed with exit code {code}", hint=self.last_message())
        last = time.monotonic() + PID_SECONDS
        while (started := control_of(self.pipe)) is None:
            if time.monotonic() > last:
                raise MpsError(f"{self.program} -d started nothing", hint=self.last_message())
            time.sleep(0.01)
        return started

    def ask(self, command: str, *, seconds: float = ASK_SECONDS) -> str:
        """What the control daemon answers to ``command``. Raises `MpsError`."""
        # Not a pipe: a process that it leaves behind could keep one open for ever.
        descriptor = -1
        try:
            descriptor = os.memfd_create("answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, MOST_ANSWER)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
            code = self._run([], command.encode() + b"\n", seconds, descriptor)
            # The program has the same descriptor, and so the same place in the file.
            answer = os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), 0).decode(errors="replace")
        except OSError as error:
            raise self._cannot_start(error) from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if code != 0:
            said = " ".join(answer[:MOST_SAID].split()) or "nothing"
            raise MpsError(f"{self.program} failed at {command}, exit code {code}", hint=f"it said: {said}")
        return answer

    def servers(self) -> tuple[MpsServer, ...]:
        """Servers and their clients. Raises `MpsError`."""
        until = time.monotonic() + LIST_SECONDS

        def in_time(pid: int) -> int:
            if time.monotonic() > until:
                raise MpsError(
                    f"{self.program} still lists servers and clients after {LIST_SECONDS:g} s",
                    hint=f"its log is in {self.log}",
                )
            return pid

        found = []
        for pid in map(in_time, parse_pids(self.ask("get_server_list"))):
            clients = parse_pids(self.ask(f"get_client_list {pid}"))
            status = parse_server_status(self.ask(f"get_server_status {pid}"))
            server = process(pid)
            alive = tuple(client for client in (process(in_time(pid)) for pid in clients) if client is not None)
            found.append(MpsServer(pid=pid, uid=server.uid if server else -1, status=status, clients=alive))
        return tuple(found)

    def quit(self, *, seconds: int | None = None) -> subprocess.Popen[bytes]:
        """Asks the control daemon to end and does not wait: it takes no more clients and goes with its last one.

        After ``seconds`` it ends the clients that are left. The process that asks is returned; it may wait as long as
        the control daemon does. Raises `MpsError` if the question itself fails.
        """
        command = "quit\n" if seconds is None else f"quit -t {max(1, seconds)}\n"
        try:
            with (self.log / "quit.log").open("wb") as output:
                child = subprocess.Popen(
                    [self.program],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=self.environment(),
                    start_new_session=True,  # so that it outlives us
                )
        except OSError as error:
            raise self._cannot_start(error) from None
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(command.encode())
            child.stdin.close()
        threading.Thread(target=child.wait, name="mps quit", daemon=True).start()  # somebody must collect it
        return child

    def environment(self) -> dict[str, str]:
        """What points the control program at this pipe directory, on top of what this process has.

        Without variables that a shell had set for its own programs: MPS is for all devices, and its server must not be
        hooked.
        """
        dropped = ("CUDA_", "LD_PRELOAD")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return kept | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def last_message(self) -> str:
        """The end of what it said or logged, for a hint."""
        for name in ("start.log", "control.log"):
            with contextlib.suppress(OSError):
                lines = (self.log / name).read_text(errors="replace").strip().splitlines()
                if lines:
                    return f"{self.log / name} ends with: {lines[-1].strip()}"
        return f"it left no word in {self.log}"

    def _run(self, arguments: list[str], stdin: bytes, seconds: float, output: int) -> int:
        child = subprocess.Popen(
            [self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=self.environment(),
            start_new_session=True,  # so that it can be stopped with all it started
        )
        try:
            child.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            give_up(child)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
            alive = control_of(self.pipe)
            hint = (
                f"`kill {alive.pid}` ends the control daemon; {self.last_message()}" if alive else self.last_message()
            )
            raise MpsError(f"{self.program} does not answer within {seconds:g} s", hint=hint) from None
        return child.returncode

    def _cannot_start(self, error: OSError) -> MpsError:
        return MpsError(f"{self.program} cannot be started: {error.strerror or error}")
