"""The process between `gemlet profile` and the one that runs models: when that one is to end, all that it has started
ends with it, whatever it did to get away, also where `gemlet profile` itself was killed. But where a model kills this
process, what it has started and given up as its own is nobody's.

It is the parent of what would else be nobody's child (PR_SET_CHILD_SUBREAPER), so a daemon that a model has made is
among its descendants, too. Standard library only: it starts in no time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from gemlet.readiness import await_readable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END_SECONDS = 5.0  # for what was killed: the driver may take its time over a process' memory
PAUSE_SECONDS = 0.01
LOOK_SECONDS = 3600.0  # nothing happens then; poll(2) takes no longer time than some weeks
PASSES = 100  # of looks for what a process starts while it is being stopped


def main() -> int:
    parser = argparse.ArgumentParser(prog="gemlet.serve.profiling.guard")
    parser.add_argument("--line", type=int, required=True, help="ends with gemlet; told how the process ended")
    parser.add_argument("--pass", dest="passed", type=int, required=True, help="a descriptor for the process")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    line = socket.socket(fileno=arguments.line)
    os.set_inheritable(arguments.line, False)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    guard = os.getpid()

    def prepare() -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # what is ignored stays so in another program
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        # Where the memory of the host is used up, the kernel ends this one, and not gemlet or the user's desktop.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")

    child = subprocess.Popen(arguments.command, pass_fds=(arguments.passed,), preexec_fn=prepare)  # noqa: PLW1509
    os.close(arguments.passed)
    handle = os.pidfd_open(child.pid)
    while not await_readable([line, handle], LOOK_SECONDS):
        pass
    status = child.poll()  # before others' ends are awaited, which takes this one's too
    end(guard, time.monotonic() + END_SECONDS)
    with contextlib.suppress(OSError):
        line.send(b"" if status is None else str(status).encode())
    return 0


def end(pid: int, until: float) -> None:
    """Kills the descendants of ``pid``, which is this process', and of those that come to it meanwhile."""
    while time.monotonic() < until:
        _stop(pid)
        found = descendants(pid)
        for each in found:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(PAUSE_SECONDS)


def _stop(pid: int) -> None:
    """Else what forks without end would be ahead for ever."""
    stopped: set[int] = set()
    for _ in range(PASSES):
        found = descendants(pid) - stopped
        if not found:
            return
        for each in found:
            with contextlib.suppress(OSError):  # it has ended, or is another user's by now
                os.kill(each, signal.SIGSTOP)
        stopped |= found


def _reap() -> bool:
    """Whether there are children left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``, as they are now."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for each in children.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


if __name__ == "__main__":
    sys.exit(main())
