"""Starts a program beneath `gemlet run` where a person waits for it at a prompt, so that a line can be said at its end.

Everywhere else the program replaces `gemlet run`, because scripts, services and schedulers address it by that pid. A
shell with job control addresses a job: the program gets a process group and the terminal of its own, as from a shell,
so it alone sees Ctrl-C; what is sent to this process goes to the program, once; it stops, goes on and ends as the
program does, and the program dies with it. Only SIGSTOP of this pid does not reach the program.

Imported by `gemlet run` only where `wanted`: click and the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TERMINAL = 2  # stderr
PR_SET_PDEATHSIG = 1
OWN = {  # of this process' own making, or beyond its reach
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}
HANDLED = signal.valid_signals() - OWN


def wanted() -> bool:
    """Whether this process is a job by itself, started at a prompt and in the foreground, with no pipe to others."""
    try:
        job = os.getpgrp() == os.getpid() != os.getsid(0)
        pipes = any(stat.S_ISFIFO(os.fstat(descriptor).st_mode) for descriptor in (0, 1))
        return job and not pipes and os.isatty(TERMINAL) and os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:
        return False


def run(execute: Callable[[], object], at_end: Callable[[], None]) -> int:
    """Lets a child ``execute``, and returns its exit code, or ends by the same signal; before that, calls ``at_end``.

    ``execute`` does not return; what it raises is raised in the child, and ``at_end`` is not called then.
    """
    libc = ctypes.CDLL(None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    started, starting = os.pipe()  # closed by exec
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _give_terminal(os.getpid())
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            execute()
        finally:
            os.write(starting, b"0")
    os.close(starting)
    status = _attend(child)
    if os.read(started, 1) == b"":
        at_end()
    if os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def _attend(child: int) -> int:
    """Passes signals on until the child has ended; its wait status."""
    while True:
        received = signal.sigwaitinfo(HANDLED).si_signo
        if received == signal.SIGCHLD:
            while (change := os.waitpid(child, os.WNOHANG | os.WUNTRACED))[0] == child:
                status = change[1]
                if _foreground() == child:
                    _give_terminal(os.getpgrp())
                if not os.WIFSTOPPED(status):
                    return status
                os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees a stopped job; SIGCONT is pending afterwards
        elif received == signal.SIGCONT:
            if _foreground() == os.getpgrp():  # `fg`, not `bg`
                _give_terminal(child)
            os.killpg(child, signal.SIGCONT)
        elif received == signal.SIGHUP:  # a shell that ends tells whole jobs
            os.killpg(child, signal.SIGHUP)
        else:
            os.kill(child, received)


def _foreground() -> int:
    with contextlib.suppress(OSError):  # it has hung up
        return os.tcgetpgrp(TERMINAL)
    return -1


def _give_terminal(group: int) -> None:
    with contextlib.suppress(OSError):  # it has hung up
        os.tcsetpgrp(TERMINAL, group)  # SIGTTOU is blocked


def _end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's is the one that tells something
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
