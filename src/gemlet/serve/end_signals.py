"""Signals at which a server ends: its own process heeds them, those that it has started leave that to it."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

# systemd, and a terminal that is closed or interrupted, send them to all processes of a server.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_before_fork = threading.local()  # the mask of the thread that forks


def leave_them_to_the_server() -> None:
    """To be called first in a process of the server: that says when this one ends."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_children_by_sigterm() -> None:
    """To be called after that, where models run: a program does not lose what is ignored by exec or fork, and what a
    model starts is to end when the model says so (`Popen.terminate`, `multiprocessing.Pool.terminate`)."""
    signal.signal(signal.SIGTERM, _ignore)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(before=_hold_back, after_in_parent=_release, after_in_child=_as_everywhere)


def _ignore(_number: int, _frame: Any) -> None:
    """As SIG_IGN, but exec takes it away."""


def _hold_back() -> None:
    """A child may be told to end before it has forgotten how to ignore that."""
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _as_everywhere() -> None:
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()
