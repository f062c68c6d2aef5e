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

    woken = _woken_by_ends()
    child = subprocess.Popen(
        arguments.command, pass_fds=(arguments.passed,), preexec_fn=prepare,  # noqa: PLW1509
        start_new_session=True,  # so that no group of what it starts is this process', see _send()
    )  # fmt: skip
    os.close(arguments.passed)
    handle = os.pidfd_open(child.pid)
    while await_readable([line, handle, woken], LOOK_SECONDS) <= {woken}:
        _reap_orphans(woken, child.pid)
    status = child.poll()  # before others' ends are awaited, which takes this one's too
    end(guard, time.monotonic() + END_SECONDS)
    with contextlib.suppress(OSError):
        line.send(b"" if status is None else str(status).encode())
    return 0


def _woken_by_ends() -> int:
    """A descriptor that can be read when a child has ended."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def _reap_orphans(woken: int, child: int) -> None:
    """Those that have ended, of what the child started and gave up. A model that starts something at each run would
    come to as many as there may be, and what looks for processes would take its time."""
    with contextlib.suppress(BlockingIOError):
        os.read(woken, 4096)
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != child:
        os.waitpid(found.si_pid, 0)


def end(pid: int, until: float) -> None:
    """Kills the descendants of ``pid``, which is this process', and of those that come to it meanwhile."""
    while time.monotonic() < until:
        _stop(pid, until)
        for each in descendants(pid):
            _send(each, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(PAUSE_SECONDS)


def _stop(pid: int, until: float) -> None:
    """Else what forks without end would be ahead for ever."""
    stopped: set[int] = set()
    for _ in range(PASSES):
        _reap()  # each one that has ended is in the way of a look, and there may be thousands
        found = descendants(pid) - stopped
        if not found or time.monotonic() >= until:
            return
        for each in found:
            _send(each, signal.SIGSTOP)
        stopped |= found


def _send(pid: int, number: signal.Signals) -> None:
    """To its whole group, which are descendants, too: the kernel lets nobody get out of a group's signal by a fork,
    while a process that forks and ends without end may be another one each time that it is found."""
    with contextlib.suppress(OSError):  # it has ended, or is another user's by now
        group = os.getpgid(pid)
        if group != os.getpgrp():
            os.killpg(group, number)
    with contextlib.suppress(OSError):
        os.kill(pid, number)


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
