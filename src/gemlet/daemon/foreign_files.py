"""Connections whose peers cannot stall the daemon by descriptors of files of their choice.

A process that closes the last descriptor of a file may have to wait: for a TCP connection that lingers, as long as its
sender likes. The kernel closes descriptors that come with data which is read without asking for them, and those in
data that nobody reads. native/server/foreign_files.hpp does the same for programs.
"""

from __future__ import annotations

import socket
from typing import Any


class _Apart(socket.socket):
    def close(self) -> None:
        """Without waiting, whatever its peers have sent."""
        from gemlet._native import close_apart  # noqa: PLC0415  (the daemon alone has it)

        if (descriptor := self.detach()) >= 0:
            close_apart(descriptor)


class Listener(_Apart):
    """A Unix socket of streams. Since Linux 6.16 its peers may send no descriptors; before, that ends a connection."""

    def __init__(self, *, refuses: bool = True) -> None:
        from gemlet._native import refuse_files  # noqa: PLC0415

        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._refuses = refuses and refuse_files(self.fileno())

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket."""
        connection, address = super().accept()
        if self._refuses:
            return connection, address
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)  # else it cannot be looked at
        return _Connection(fileno=connection.detach()), address


class _Connection(_Apart):
    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Raises ConnectionAbortedError if descriptors come with what would be received."""
        data, _, found, _ = self.recvmsg(bufsize, 0, flags | socket.MSG_PEEK)
        if found & socket.MSG_CTRUNC:
            raise ConnectionAbortedError("the peer sent descriptors")
        return super().recv(len(data), flags) if data else data
