"""What one client, and all of them together, may take from the server before a model has seen anything of it."""

from __future__ import annotations

import resource
from dataclasses import dataclass

HERE_BYTES = 64 * 1024  # what takes longer than so many bytes do is not done in the event loop
COPY_BYTES = 1 << 20  # as many are copied in the event loop at once: half a millisecond
CONTROL_BYTES = HERE_BYTES  # of a request that is not for inference, which the event loop reads
HEADER_BYTES = 64 * 1024
URL_BYTES = 8 * 1024  # of its first line; taking one apart takes much longer than reading it
HEADER_S = 10.0  # for a header, and for a TLS handshake
SILENT_S = 60.0  # until a client is asked whether it is there, or gone if it never asked for anything
CLOSE_S = 10.0  # for a client to read the end of its last answer
HELD_REQUESTS = 4  # the largest ones, that clients who are slow may have under way together
FREE_CALLS = 16  # of a connection, that do not count among what it holds: most clients have no more under way
SPARE_FILES = 256  # for executors, models, logs
REGION_PART = 8  # one file in so many may be one of shared memory
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``request_bytes``: of one request as it is sent, when it is decompressed, and in shared memory.

    connections: of each protocol, fewer where there are not enough files. request_s: from the first byte of a request
    to its last, and for a client to go on reading its answer.
    """

    request_bytes: int = 64 * 1024**2
    connections: int = 4096
    request_s: float = LONGEST_S

    @property
    def held_bytes(self) -> int:
        """Of all requests that are not complete, and answers that are not read."""
        return HELD_REQUESTS * self.request_bytes

    def connections_of_each(self) -> int:
        """What the limit on open files leaves for each of two protocols."""
        return max(1, min(self.connections, (_files() - SPARE_FILES - most_regions()) // 2))


def most_regions() -> int:
    """Of shared memory, of all users together: each is an open file, and clients need some, too."""
    return _files() // REGION_PART


def _files() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files
