"""Signals at which a server ends: its own process heeds them, those that it has started leave that to it."""

from __future__ import annotations

import signal

# systemd, and a terminal that is closed or interrupted, send them to all processes of a server.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def leave_them_to_the_server() -> None:
    """To be called first in a process of the server: that says when this one ends."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
