"""Tells the starter of the daemon that it accepts connections: systemd, or the pipe of `gemlet run`."""

from __future__ import annotations

import contextlib
import os
import socket

from gemlet.daemon.autostart import READY


def systemd(state: str) -> None:
    """sd_notify(3): ``READY=1``, ``STOPPING=1``, ``STATUS=...``. Does nothing outside systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier, contextlib.suppress(OSError):
        notifier.connect("\0" + address[1:] if address.startswith("@") else address)
        notifier.send(state.encode())


def starter(descriptor: int | None) -> None:
    """Writes to the pipe of the process that started this daemon, and closes it."""
    if descriptor is None:
        return
    with contextlib.suppress(OSError):  # the starter may have given up
        os.write(descriptor, READY)
    with contextlib.suppress(OSError):
        os.close(descriptor)
