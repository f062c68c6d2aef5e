"""JSON, msgpack and plain values as typed structs: the one place where msgspec reads the annotations of a type.

It does so when a type is first used, and crashes the process (0.22) where two threads do that at once, even of two
types with a struct in common. Here one thread at a time reads them; `make lint` refuses msgspec's own functions
elsewhere.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

Decoded = TypeVar("Decoded")

_reading = threading.Lock()
_known: dict[Any, msgspec.json.Decoder[Any]] = {}  # by type, never removed: types are few


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON of that type or union of types, the same for each caller; threads may share it."""
    decoder = _known.get(kind)
    if decoder is None:
        with _reading:
            decoder = _known.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A new decoder of msgpack of that type or union of types."""
    with _reading:
        return msgspec.msgpack.Decoder(kind)


def from_json(data: bytes | bytearray | memoryview | str | msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """Raises msgspec.DecodeError, ValidationError, UnicodeDecodeError or RecursionError."""
    decoded: Decoded = json_decoder(kind).decode(data)
    return decoded


def convert(content: object, kind: type[Decoded], *, builtin_types: Iterable[type] | None = None) -> Decoded:
    """Raises msgspec.ValidationError. ``builtin_types``: taken as they are, for example bytes."""
    json_decoder(kind)  # reads the annotations
    return msgspec.convert(content, kind, builtin_types=builtin_types)
