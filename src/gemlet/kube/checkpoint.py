"""The shares of this node on disk, so that agent, kubelet, daemon and machine may each restart.

The kubelet asks once per pod; after a restart only this file knows what running pods have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gemlet import whole_file
from gemlet.decoding import from_json
from gemlet.kube.share import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)
VERSION = 1
# It becomes the name of a directory, which is removed with all that is in it.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHARES = '"shares":['
_NOT_DECODED = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _Document(msgspec.Struct, kw_only=True):
    version: int
    shares: list[msgspec.Raw]
    unaccounted: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a checkpoint says. ``unaccounted``: ids of shares of which an earlier, damaged one said too little.

    ``damage``: why it does not say all, None if it does: a share that it does not name may then be in use.
    """

    shares: list[Share]
    unaccounted: frozenset[str] = frozenset()
    damage: str | None = None


def save(path: Path, shares: Iterable[Share], unaccounted: Iterable[str] = ()) -> None:
    """Writes all shares, atomically and durably. Raises OSError, and then the old content stands."""
    content = {"version": VERSION, "shares": list(shares), "unaccounted": sorted(unaccounted)}
    whole_file.write(path, msgspec.json.encode(content), durable=True)


def load(path: Path) -> Loaded:
    """The last save. Of a damaged file the entries that are whole are taken."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return Loaded(shares=[], damage=error.strerror or str(error))
    try:
        document = from_json(data, _Document)
    except _NOT_DECODED as error:
        return Loaded(shares=list(_whole_entries(data)), damage=str(error))
    if document.version != VERSION:
        return Loaded(shares=[], damage=f"it has version {document.version}, not {VERSION}")
    shares, damage = [], None
    for raw in document.shares:
        try:
            shares.append(_share(raw))
        except _NOT_DECODED as error:
            damage = f"an entry is left out: {error}"
    return Loaded(shares=shares, unaccounted=frozenset(filter(_ID.fullmatch, document.unaccounted)), damage=damage)


def _share(data: bytes | msgspec.Raw) -> Share:
    share = from_json(data, Share)
    if not _ID.fullmatch(share.id):
        raise msgspec.ValidationError(f"{share.id!r} is not the id of a share")
    return share


def set_aside(path: Path, damage: str) -> None:
    """Keeps a damaged file for people, under a name that no save takes, and says so. Raises OSError."""
    try:
        kept = path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))
    except FileNotFoundError:
        logger.error("error: the checkpoint %s is missing, and there are shares on this node", path)
    else:
        logger.error("error: the checkpoint %s is damaged: %s. It is kept as %s", path, damage, kept)
    logger.error(
        "hint: what it does not account for is left as it is, until its pods have ended or the kubelet names it; to "
        "have annotations apply to such pods again, delete the pods"
    )


def _whole_entries(data: bytes) -> Iterator[Share]:
    text = data.decode(errors="replace")
    place = text.find(_SHARES) + len(_SHARES)
    if place < len(_SHARES):
        return
    decoder = json.JSONDecoder()
    with contextlib.suppress(ValueError, RecursionError):  # at the first that is not whole
        while True:
            _, end = decoder.raw_decode(text, place)
            with contextlib.suppress(*_NOT_DECODED):
                yield _share(text[place:end].encode())
            place = end + 1  # after the comma
