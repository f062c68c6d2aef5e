"""TLS for the webhook, with a certificate that is changed while the server runs.

cert-manager and Helm replace the files of a mounted secret; connections made after that get the new certificate. A
pair that cannot be read changes nothing: the old one may still be good, and a half-written one will be whole in a
moment.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from gemlet.errors import GemletError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class Certificate:
    """The pair ``tls.crt`` and ``tls.key`` in ``directory``, as secrets of type kubernetes.io/tls name them."""

    def __init__(self, directory: Path) -> None:
        """Raises GemletError if the pair cannot be used."""
        self._files = (directory / "tls.crt", directory / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._content()
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise GemletError(
                f"{self._files[0]} and {self._files[1].name} are no certificate and its key: {error}",
                hint="mount a secret of type kubernetes.io/tls there",
            ) from None

    async def keep_fresh(self, *, look: float = LOOK_SECONDS) -> None:
        """Runs until cancelled; looks every ``look`` seconds."""
        while True:
            await asyncio.sleep(look)
            self.refresh()

    def refresh(self) -> bool:
        """Takes a new pair, if there is one and it is good; returns whether."""
        content = self._content()
        if content in (self._seen, None):
            return False
        try:
            # A pair that does not fit would spoil the context that serves, so it is tried in another one.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            self._load()
        except (OSError, ssl.SSLError) as error:
            logger.warning("certificate file=%s not taken: %s", self._files[0], error)
            return False
        self._seen = content
        logger.info("certificate file=%s taken", self._files[0])
        return True

    def _load(self) -> None:
        self.context.load_cert_chain(*self._files)

    def _content(self) -> tuple[bytes, bytes] | None:
        # Not the times: a secret's files are links that are switched, and a copy may have any time.
        try:
            return self._files[0].read_bytes(), self._files[1].read_bytes()
        except OSError:
            return None
