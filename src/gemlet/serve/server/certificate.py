"""The server's certificate and key, which are renewed while it runs: new connections get those that the files have."""

from __future__ import annotations

import logging
import ssl
import stat
from typing import TYPE_CHECKING

from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """Of these files in PEM. Raises ConfigError where they are not valid."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._stamp = self._look()
        self._contexts: list[ssl.SSLContext] = []
        self._load(_context())

    def context(self, protocol: str) -> ssl.SSLContext:
        """``protocol``: as TLS names it. Raises ConfigError."""
        context = _context()
        context.set_alpn_protocols([protocol])
        self._load(context)
        self._contexts.append(context)
        return context

    def refresh(self) -> None:
        """Follows the files; while they are not a valid pair the server keeps the one that it has."""
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._load(_context())  # one that fails would leave a context in use without its key
            for context in self._contexts:
                self._load(context)
        except ConfigError as error:
            logger.error("the certificate is as it was: %s", error)
        else:
            logger.info("%s: a new certificate", self._chain)

    def _look(self) -> Stamp | None:
        """None: one of them is not there, or no file, which may be waited for in vain."""
        try:
            found = [path.stat() for path in (self._chain, self._key)]
        except OSError:
            return None
        if not all(stat.S_ISREG(each.st_mode) for each in found):
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._chain, self._key, password=b"")  # else one with a password asks the terminal
        except (OSError, ssl.SSLError) as error:
            message = f"the certificate and {self._key} cannot be used: {error.strerror or error}"
            raise ConfigError(message, path=str(self._chain), hint="name PEM files without a password") from None


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    return context
