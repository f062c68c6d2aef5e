"""Which clients may send requests: those with a bearer token of a file. Of each only a digest is kept, which is looked
up and never compared. Where there are no tokens, all may but the pages of other sites in a browser of this machine."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import stat
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gemlet.errors import ConfigError
from gemlet.typed_command import quoted

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)
MAX_BYTES = 1 << 20
LEAST = 16  # characters of a token: what is shorter can be guessed
SCHEME = b"bearer"
OPEN_PATHS = frozenset({b"/v2/health/live", b"/v2/health/ready"})  # for probes, who tell nothing and learn little
OPEN_PROCEDURES = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})


class Tokens:
    """Those of a file, one a line; lines that start with # are comments. Raises ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""  # why the file is not followed
        self._read_from, content = self._read(flags=0)  # at first it may be a pipe: --token-file <(...)
        self._digests = self._parsed(content)
        if not self._digests:
            raise self._not_tokens()
        self._content = _digest(content)

    def of(self, authorization: bytes) -> bytes:
        """What knows() takes, for as long as an answer goes on; empty: it is none of the tokens. ``authorization``: the
        value of that header."""
        scheme, _, token = authorization.partition(b" ")
        digest = _digest(token.strip())
        return digest if scheme.lower() == SCHEME and digest in self._digests else b""

    def knows(self, digest: bytes) -> bool:
        """Whether it is still one of the tokens."""
        return digest in self._digests

    def refresh(self) -> bool:
        """Follows the file. One that was emptied leaves none, so that nobody comes in; one that is not there, or is not
        valid, leaves the tokens as they were. Whether any has gone."""
        had = self._digests
        try:
            found = self._path.stat()
            # Not the times of a file: a copy may bring them along, and two changes of a moment may have the same.
            if stat.S_ISREG(found.st_mode) or _which(found) != self._read_from:
                self._follow()
            self._told = ""
        except (ConfigError, OSError) as error:
            before, self._told = self._told, str(error)
            if before != self._told:  # not every second
                logger.error("the tokens are as they were: %s", error)
        return not had <= self._digests

    def _follow(self) -> None:
        """Raises ConfigError."""
        read_from, content = self._read(flags=os.O_NONBLOCK)
        if (digest := _digest(content)) != self._content:
            self._digests = self._parsed(content)
            level = logging.INFO if self._digests else logging.WARNING
            logger.log(level, "%s: %d tokens", self._path, len(self._digests))
        self._read_from, self._content = read_from, digest

    def _read(self, *, flags: int) -> tuple[tuple[int, int, int], bytes]:
        """Which file it is, and what is in it. With O_NONBLOCK among ``flags`` only of a file: nobody is answered while
        another kind would be waited for."""
        path = str(self._path)
        try:
            with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
                found = os.fstat(file.fileno())
                if flags and not stat.S_ISREG(found.st_mode):
                    raise ConfigError("not a regular file", path=path, hint="name the file itself")
                content = file.read(MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"the tokens cannot be read: {error.strerror}", path=path) from None
        if stat.S_IMODE(found.st_mode) & 0o007:
            raise ConfigError("other users may read the tokens", path=path, hint=f"chmod 600 {quoted(path)}")
        return _which(found), content

    def _parsed(self, content: bytes) -> frozenset[bytes]:
        """The tokens in it. Raises ConfigError."""
        lines = [line.strip() for line in content.splitlines()]
        tokens = [line for line in lines if line and not line.startswith(b"#")]
        if any(len(token) < LEAST or b" " in token for token in tokens):
            raise self._not_tokens()
        return frozenset(map(_digest, tokens))

    def _not_tokens(self) -> ConfigError:
        return ConfigError(
            f"expected tokens of at least {LEAST} characters without spaces, one a line",
            path=str(self._path), hint="make one with `openssl rand -hex 32`",
        )  # fmt: skip


def client_of(peer: str, token: bytes) -> str:
    """Whose a request is, where the clients of a model have turns: of those that come from one address, as through a
    proxy, each token is one. What else a header says of its sender, anybody may write there.

    ``token``: as of() gives it.
    """
    return f"{peer} {token.hex()}" if token else peer


def is_of_here(origin: bytes, site: bytes) -> bool:
    """Whether a browser's request is of a page that belongs to this machine or, through a proxy, to this server.

    ``origin``, ``site``: the headers Origin, which browsers send with each POST, and Sec-Fetch-Site, which they send to
    hosts that have proved their name: one that another site points at this machine has not.
    """
    if site == b"same-origin":
        return True
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _which(found: os.stat_result) -> tuple[int, int, int]:
    """The file and its kind: a number may be another file's once it is free."""
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)
