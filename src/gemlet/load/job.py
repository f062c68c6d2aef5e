"""What to send, to which server, how fast: plain data for the processes that send it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from gemlet.errors import GemletError, InvalidValue
from gemlet.load import arrivals

if TYPE_CHECKING:
    from collections.abc import Iterator

Scheme = Literal["http", "https", "grpc", "grpcs"]
PORTS: dict[str, int] = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 443}


class LoadError(GemletError):
    """The server cannot be asked, or does not answer as the protocol says."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """``http://host:8000``, ``grpc://host``; without a scheme http. Raises InvalidValue."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        hint = "write http://127.0.0.1:8000 or grpc://127.0.0.1:8001"
        try:
            port = parts.port
        except ValueError:
            raise InvalidValue(f"{url!r} has a port that is not valid", hint=hint) from None
        if parts.scheme not in PORTS or not parts.hostname or parts.path.strip("/"):
            raise InvalidValue(f"{url!r} is not the address of a server", hint=hint)
        return cls(parts.scheme, parts.hostname, port or PORTS[parts.scheme])

    @property
    def grpc(self) -> bool:
        return self.scheme.startswith("grpc")

    @property
    def secure(self) -> bool:
        return self.scheme in {"https", "grpcs"}

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests to one model. ``messages`` are taken in turn; ``rows`` in each; slo_ms None: nothing is promised."""

    model: str
    rate: arrivals.Rate
    messages: tuple[bytes, ...]
    spread: arrivals.Spread = "poisson"
    variation: float = 1.0
    slo_ms: float | None = None
    rows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run. connections: at most this many a process (HTTP). patience_s: how long to wait for the last replies."""

    address: Address
    streams: tuple[Stream, ...]
    seconds: float
    seed: int = 1
    connections: int = 512
    patience_s: float = 10.0

    def schedule(self, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
        """When which stream sends, in seconds from the start, ascending; every ``parts``-th of all, from ``part`` on.

        The parts together are the same arrivals however many there are.
        """
        streams = [self._times(number) for number in range(len(self.streams))]
        return islice(merge(*streams), part, None, parts)

    def _times(self, number: int) -> Iterator[tuple[float, int]]:
        stream = self.streams[number]
        draw = arrivals.gaps(stream.spread, stream.variation, random.Random(f"{self.seed}/{number}"))
        return ((second, number) for second in arrivals.times(stream.rate, draw, self.seconds))
