"""HTTP/1.1: connections (http_connection.py), and what their URLs mean."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from gemlet.serve.server.frontend import connections
from gemlet.serve.server.frontend.http_connection import Connection

if TYPE_CHECKING:
    from gemlet.serve.server.frontend.access import Tokens
    from gemlet.serve.server.frontend.limits import Limits
    from gemlet.serve.server.frontend.service import Service

MAX_TARGETS = 4096  # URLs of inference whose parts are remembered
MAX_TARGET_BYTES = 256


class HttpServer(connections.Server):
    """``tokens``: who may ask; None: everybody who can connect."""

    def __init__(self, service: Service, given: Limits | None = None, tokens: Tokens | None = None) -> None:
        super().__init__(service, Connection, given, tokens)
        self._targets: dict[bytes, tuple[str, str]] = {}

    def target(self, url: bytes) -> tuple[str, str] | None:
        """(model, version) of an inference URL; None for any other."""
        known = self._targets.get(url)
        if known is not None:
            return known
        parts = url.partition(b"?")[0].decode("latin-1").split("/")
        target = None
        if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 5:
            target = (unquote(parts[3]), "")
        elif parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 7 and parts[4] == "versions":
            target = (unquote(parts[3]), unquote(parts[5]))
        if target is not None and len(self._targets) < MAX_TARGETS and len(url) <= MAX_TARGET_BYTES:
            self._targets[url] = target
        return target
