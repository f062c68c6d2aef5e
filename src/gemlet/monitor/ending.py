"""Ends programs that `gemlet top` shows: those of the user who runs it, or any for root, as the kernel decides.

A pid alone does not name a process for long. Each is opened as a pidfd, and its start compared with the one that was
shown, before a signal is sent through that pidfd.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from gemlet.devices.mps import process
from gemlet.devices.started import started_at
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.status import ClientStatus, UnmanagedStatus

SAME_START = 0.5  # seconds; starts are told in hundredths


class NotEnded(GemletError):
    """A program cannot be ended, and why."""


def send(who: ClientStatus | Outsider | UnmanagedStatus, number: signal.Signals | None) -> None:
    """Sends a signal, or, with None, finds out whether it could be sent. Raises `NotEnded`."""
    title = f"{who.called} ({who.pid})"
    try:
        descriptor = os.pidfd_open(who.pid)
    except OSError:
        raise NotEnded(f"{title} has ended, or is not visible from here") from None
    try:
        found = process(who.pid)  # after the pidfd: it is the same process until the signal
        started = started_at(found.started) if found else None
        if started is None or who.started is None or abs(started - who.started) > SAME_START:
            raise NotEnded(f"{title} has ended, or is not visible from here")
        signal.pidfd_send_signal(descriptor, number or 0)
    except PermissionError:
        raise NotEnded(f"{title} belongs to {who.user or who.uid}: only that user and root may end it") from None
    except ProcessLookupError:
        raise NotEnded(f"{title} has ended") from None
    finally:
        os.close(descriptor)
