"""Answers in pieces, so that what is large is not copied. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gemlet.serve.server.frontend import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.inference_protocol.tensors import Buffer


def joined(parts: Iterable[Buffer]) -> list[Buffer]:
    """The same bytes in fewer pieces: what is too large to be copied is one of its own."""
    found: list[Buffer] = []
    for large, group in groupby(parts, lambda part: len(part) > limits.COPY_BYTES):
        run = list(group)
        found += run if large else [b"".join(run)]
    return found
