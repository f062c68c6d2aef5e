"""TLS for the webhook, with a certificate that is changed while the server runs.

cert-manager and Helm replace the files of a mounted secret; connections made after that get the new certificate. A
pair that cannot be read changes nothing: the old one may still be good, and a half-written one will be whole in a
moment.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
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
        try:
            self._seen = self._content()
            _load(self.context, self._seen)
        except (OSError, ssl.SSLError) as error:
            raise GemletError(
                f"{self._files[0]} and {self._files[1].name} are not a valid certificate and key: {error}",
                hint="mount a secret of type kubernetes.io/tls there",
            ) from None

    async def keep_fresh(self, *, look: float = LOOK_SECONDS) -> None:
        """Runs until cancelled; looks every ``look`` seconds."""
        while True:
            await asyncio.sleep(look)
            self.refresh()

    def refresh(self) -> bool:
        """Takes a new pair, if there is one and it is good; returns whether."""
        try:
            content = self._content()
            if content == self._seen:
                return False
            # A pair that does not fit would spoil the context that serves, so it is tried in another one.
            _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), content)
            _load(self.context, content)
        except (OSError, ssl.SSLError) as error:
            logger.warning("certificate file=%s not taken: %s", self._files[0], error)
            return False
        self._seen = content
        logger.info("certificate file=%s taken", self._files[0])
        return True

    def _content(self) -> bytes:
        # Not the times: a secret's files are links that are switched, and a copy may have any time.
        return b"\n".join(path.read_bytes() for path in self._files)


def _load(context: ssl.SSLContext, content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as pair:  # ssl reads files only, and ours may change between two readings
        pair.write(content)
        pair.flush()
        context.load_cert_chain(pair.name, password=b"")  # else one that needs a password is asked of the terminal
