"""gRPC's own format within HTTP/2: messages with their lengths, timeouts, statuses. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING

from gemlet.serve.server.frontend import limits, pieces
from gemlet.serve.server.frontend.large_body import LargeBody
from gemlet.serve.server.frontend.status import GRPC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.call import Refusal

PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
ENCODINGS = frozenset({b"identity", b"gzip", b"deflate"})
TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
UNIT_MS = {b"H": 3_600_000.0, b"M": 60_000.0, b"S": 1000.0, b"m": 1.0, b"u": 0.001, b"n": 0.000001}
PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}  # of a status message; other bytes are written as %XX
# Of a status message as it is sent: with all headers beside it less than the 8 KiB that clients take by default. A
# client that gets more knows neither status nor message.
MESSAGE_BYTES = 4096
CUT = b"..."
Header = tuple[bytes, bytes]
HEAD: list[Header] = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip,deflate"),
]


class Status(IntEnum):
    """Those that this server gives, by gRPC's names."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class TooLong(Exception):
    """A message that is longer than was allowed."""


def framed(message: Sequence[Buffer]) -> list[Buffer]:
    """A message, of parts that follow each other; one piece, unless parts are too large to be copied."""
    nbytes = sum(map(len, message))
    parts = (b"\0", nbytes.to_bytes(4, "big"), *message)
    return [b"".join(parts)] if nbytes <= limits.COPY_BYTES else pieces.joined(parts)


def bytes_of_first(buffer: bytearray | LargeBody) -> int:
    """Of the first message, whose prefix is here."""
    return int.from_bytes(buffer[1:PREFIX_BYTES], "big")


def taken(buffer: bytearray | LargeBody, most: int) -> tuple[bool, Buffer, bytearray] | None:
    """The first message of what came, whether it is compressed, and what came after it; None: it is not whole yet.

    A large message is a view of the buffer, unless that has so much more that it would be kept for little. Raises
    TooLong for one of more than ``most`` bytes as soon as its length is known.
    """
    if len(buffer) < PREFIX_BYTES:
        return None
    end = PREFIX_BYTES + bytes_of_first(buffer)
    if end > PREFIX_BYTES + most:
        raise TooLong(f"the message has {end - PREFIX_BYTES} bytes: expected at most {most}")
    if len(buffer) < end:
        return None
    if isinstance(buffer, LargeBody):
        whole = buffer.view()
        return bool(whole[0]), whole[PREFIX_BYTES:end], bytearray(whole[end:])
    compressed, message = bool(buffer[0]), memoryview(buffer)[PREFIX_BYTES:end]
    if end > (limits.HERE_BYTES if end == len(buffer) else limits.COPY_BYTES):
        return compressed, message, buffer[end:]
    copied = bytes(message)
    message.release()
    del buffer[:end]
    return compressed, copied, buffer


def timeout_ms(value: bytes) -> float | None:
    """Of a grpc-timeout header. Raises ValueError."""
    match = TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"grpc-timeout is {value!r}")
    return int(match[1]) * UNIT_MS[match[2]]


def trailers(status: Status, message: str = "", more: tuple[Header, ...] = ()) -> list[Header]:
    """What ends an answer."""
    ended = [(b"grpc-status", b"%d" % status), *more]
    if message:
        ended.append((b"grpc-message", _fitting(message)))
    return ended


def _fitting(message: str) -> bytes:
    """A status message as it is sent, cut after a character where it would not fit."""
    whole = _percent_encoded(message[: MESSAGE_BYTES + 1])
    if len(whole) <= MESSAGE_BYTES:
        return whole
    kept, room = [], MESSAGE_BYTES - len(CUT)
    for character in message:
        piece = _percent_encoded(character)
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return b"".join((*kept, CUT))


def shortened(message: str) -> str:
    """The same for a field of an answer."""
    fits = len(message) <= MESSAGE_BYTES
    text = message if fits else message[: MESSAGE_BYTES - len(CUT)] + CUT.decode()
    return text.encode(errors="backslashreplace").decode()


def _percent_encoded(text: str) -> bytes:
    data = text.encode(errors="backslashreplace")
    return b"".join([b"%c" % byte if byte in PLAIN else b"%%%02X" % byte for byte in data])


OK = trailers(Status.OK)  # of most answers


def refused(refusal: Refusal) -> list[Header]:
    more: tuple[Header, ...] = ((b"gemlet-reason", refusal.reason.encode()),)
    if refusal.retry_s is not None:
        more += ((b"retry-after", b"%d" % refusal.retry_s),)
    return trailers(Status[GRPC[refusal.reason]], refusal.message, more)
