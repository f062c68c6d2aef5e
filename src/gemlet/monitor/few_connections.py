"""A server of HTTP to which any user of the machine can connect: a bounded number of connections, each with a thread.

Where there is no room for another one, the one goes whose client has kept the server waiting for longest; those stay
whose answers are being made. The handler's `timeout` bounds what else a client may take its time for.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import ThreadingHTTPServer
from typing import Any

MAX_CONNECTIONS = 32
END_SECONDS = 1.0  # for a connection that makes room to end


class FewConnections(ThreadingHTTPServer):
    """Serves until `shutdown`. Raises OSError if the address is taken."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[Any]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._waiting: dict[socket.socket, None] = {}  # for their clients, those that wait longest first
        self._lock = threading.Lock()  # of these
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False) and not (self._end_one() and self._room.acquire(timeout=END_SECONDS)):
            self.shutdown_request(request)
            return
        self.waits(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no thread left
            self.is_answered(request)
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.is_answered(request)
            self._room.release()

    def waits(self, connection: socket.socket) -> None:
        """For its client: the next request is not there yet, or the client may take its time to read an answer."""
        with self._lock:
            self._waiting.setdefault(connection)

    def is_answered(self, connection: socket.socket) -> None:
        """Its request is there, and the answer is being made."""
        with self._lock:
            self._waiting.pop(connection, None)

    def _end_one(self) -> bool:
        with self._lock:
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            del self._waiting[longest]
            with contextlib.suppress(OSError):  # it has gone
                longest.shutdown(socket.SHUT_RDWR)
        return True
