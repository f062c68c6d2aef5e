"""A descriptor that keeps the process waiting that closes it last."""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import threading

SECONDS = 3600  # of waiting, for one that closes it as any other


def lingering() -> socket.socket:
    """A TCP connection with data that its peer never takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    _receivers.append(receiver)
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    return sender


_receivers: list[socket.socket] = []


def send_lingering(connection: socket.socket, data: bytes, *, flags: int = 0, unread: bool = False) -> bool:
    """Sends ``data`` with such a descriptor that nobody else has by then. False: the kernel does not let it pass.

    ``unread``: nobody receives it before this returns.
    """
    file = lingering()
    passed = array.array("i", [file.fileno()])
    try:
        connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], flags)
    except PermissionError:
        return False
    finally:  # the receiver may have closed it already
        closing = threading.Thread(target=file.close, daemon=True)
        closing.start()
        if unread:
            closing.join(1)
    return True


def is_cut_off(connection: socket.socket) -> bool:
    """Whether its peer ends it without an answer."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def let_go() -> None:
    """Lets those go that wait."""
    while _receivers:
        _receivers.pop().close()
