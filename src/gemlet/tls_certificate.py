"""A certificate and its key, which are renewed while a server runs: new connections get those that the files have.

cert-manager and Helm replace the files of a mounted secret. A pair that cannot be used changes nothing: the old one may
still be good, and a half-written one will be whole in a moment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import TYPE_CHECKING

from gemlet.config.text_file import read_bytes
from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
MOST = 1 << 20  # bytes of a file


class Certificate:
    """Of these files in PEM. Raises ConfigError, with this hint, where they are not a pair that can be used."""

    def __init__(self, chain: Path, key: Path, *, hint: str = "name PEM files without a password") -> None:
        self._files = chain, key
        self._contexts: list[ssl.SSLContext] = []
        try:
            self._used = self._content()
            _load(_context(), self._used)
        except (OSError, ssl.SSLError) as error:
            message = f"this and {key} are not a valid certificate and key: {_why(error)}"
            raise ConfigError(message, path=str(chain), hint=hint) from None
        self._seen: bytes | str = self._used

    def context(self, protocol: str | None = None) -> ssl.SSLContext:
        """For a server, which follows the files. ``protocol``: of ALPN, where clients are to name one."""
        context = _context()
        if protocol is not None:
            context.set_alpn_protocols([protocol])
        _load(context, self._used)
        self._contexts.append(context)
        return context

    async def keep_fresh(self, *, look: float = LOOK_SECONDS) -> None:
        """Runs until cancelled; looks every ``look`` seconds."""
        while True:
            await asyncio.sleep(look)
            self.refresh()

    def refresh(self) -> bool:
        """Takes a new pair, if there is one and it is good; returns whether."""
        try:
            content = self._content()
        except OSError as error:
            self._refuse(_why(error), error)
            return False
        if content == self._seen:
            return False
        try:
            # A pair that does not fit would leave a context that serves without its key, so it is tried in another one.
            _load(_context(), content)
            for context in self._contexts:
                _load(context, content)
        except (OSError, ssl.SSLError) as error:
            self._refuse(content, error)
            return False
        self._used = self._seen = content
        logger.info("certificate file=%s taken", self._files[0])
        return True

    def _refuse(self, seen: bytes | str, error: OSError) -> None:
        """Says so once."""
        if seen != self._seen:
            logger.warning("certificate file=%s not taken: %s", self._files[0], _why(error))
        self._seen = seen

    def _content(self) -> bytes:
        # Not the times: a secret's files are links that are switched, and a copy may have any time.
        try:
            return b"\n".join(read_bytes(path, MOST) for path in self._files)
        except ConfigError as error:  # it is no file, or too large: refused like one that cannot be read
            raise OSError(str(error)) from None


def _load(context: ssl.SSLContext, content: bytes) -> None:
    # From memory, which the ssl module cannot: the files may change between two readings of it.
    with os.fdopen(os.memfd_create("certificate"), "wb") as pair:
        pair.write(content)
        pair.flush()
        # Without a password one that needs it is asked of the terminal.
        context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}", password=b"")


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    return context


def _why(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
