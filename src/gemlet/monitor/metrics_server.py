"""The daemon's metrics over HTTP, on the loopback interface: from a thread of the daemon, which has other things to do.

Any user of the machine can connect. So there are few connections at a time, and what they ask for is made once for all
that ask within a moment.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST

from gemlet.monitor import metrics
from gemlet.monitor.few_connections import FewConnections

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.daemon.status import Status

logger = logging.getLogger(__name__)

SECONDS = 10.0  # for a request, and for a client to take the answer
KEPT_SECONDS = 0.5  # for others who ask meanwhile


class MetricsServer(FewConnections):
    """``read``: the status now, None while there is none."""

    def __init__(self, address: tuple[str, int], read: Callable[[], Status | None]) -> None:
        self._read = read
        self._making = threading.Lock()
        self._text = b""
        self._made = -math.inf
        super().__init__(address, _Handler)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        with self._making:
            if time.monotonic() - self._made < KEPT_SECONDS:
                return self._text
            status = self._read()
            if status is None:
                return b""
            self._text, self._made = metrics.render(status).encode(), time.monotonic()
            return self._text

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("metrics: a connection ended", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = SECONDS

    def do_GET(self) -> None:
        """The metrics, whatever the path."""
        self.server.is_answered(self.connection)
        text = self.server.text()
        self.server.waits(self.connection)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        logger.debug("metrics: %s", format % args)


def serve(
    read: Callable[[], Status | None], *, port: int, address: str = "127.0.0.1"
) -> tuple[MetricsServer, threading.Thread]:
    """Serves ``/metrics`` from a thread of its own until the server is shut down or the process ends.

    Raises OSError if the port is taken.
    """
    server = MetricsServer((address, port), read)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
