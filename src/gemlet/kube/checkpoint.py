"""The shares of this node on disk, so that agent, kubelet, daemon and machine may each restart.

The kubelet asks once per pod; after a restart only this file knows what running pods have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from gemlet import whole_file
from gemlet.decoding import from_json
from gemlet.kube.share import Share

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)
VERSION = 1


class _Document(msgspec.Struct, kw_only=True):
    version: int
    shares: list[msgspec.Raw]


def save(path: Path, shares: Iterable[Share]) -> None:
    """Writes all shares, atomically and durably. Raises OSError, and then the old content stands."""
    data = msgspec.json.encode({"version": VERSION, "shares": list(shares)})
    whole_file.write(path, data, durable=True)


def load(path: Path) -> list[Share]:
    """The shares of the last save. A damaged entry costs that entry, a damaged file all; neither stops the agent."""
    try:
        document = from_json(path.read_bytes(), _Document)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.error("checkpoint file=%s cannot be used: %s", path, error)
        return []
    if document.version != VERSION:
        logger.error("checkpoint file=%s has version %d, not %d", path, document.version, VERSION)
        return []
    shares = []
    for raw in document.shares:
        try:
            shares.append(from_json(raw, Share))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.error("checkpoint file=%s: an entry is left out: %s", path, error)
    return shares
