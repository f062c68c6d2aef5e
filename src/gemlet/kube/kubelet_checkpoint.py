"""Of which pods the devices of a kubelet are, by uid, out of its own checkpoint: its API knows pods by name only.

The kubelet writes it whenever it has given out devices, so before it starts what has them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.config.text_file import MAX_BYTES, read_bytes
from gemlet.decoding import from_json
from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

NAME = "kubelet_internal_checkpoint"  # in its directory of device plugins
_MIRROR = "kubernetes.io/config.mirror"
_STATIC_UID = "kubernetes.io/config.hash"  # of a mirror pod: what the kubelet calls the static pod


class _Entry(msgspec.Struct):
    PodUID: str
    ResourceName: str
    DeviceIDs: dict[str, list[str] | None] | list[str] | None = None  # by NUMA node, since Kubernetes 1.20


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _Document(msgspec.Struct):
    Data: _Data


class KubeletCheckpoint:
    """The file at ``path``, which the kubelet replaces at each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def uids(self) -> dict[tuple[str, str], str]:
        """By resource and device; empty where there is no such file, or, with a warning, none that can be read."""
        try:
            document = from_json(read_bytes(self._path, MAX_BYTES), _Document)
        except FileNotFoundError:
            return {}
        except (OSError, ConfigError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if str(error) != self._told:
                logger.warning("kubelet checkpoint=%s cannot be read: %s", self._path, error)
                self._told = str(error)
            return {}
        return {
            (entry.ResourceName, device): entry.PodUID
            for entry in document.Data.PodDeviceEntries or ()
            for device in _devices(entry)
        }


def is_of(uid: str, meta: Mapping[str, Any]) -> bool:
    """Whether the apiserver's pod with ``meta`` is the one that the kubelet calls ``uid``."""
    if meta.get("uid") == uid:
        return True
    notes = meta.get("annotations") or {}
    # Of a static pod: a hash without dashes, which no pod of the apiserver has for its own.
    return "-" not in uid and _MIRROR in notes and notes.get(_STATIC_UID) == uid


def _devices(entry: _Entry) -> list[str]:
    if not isinstance(entry.DeviceIDs, dict):
        return entry.DeviceIDs or []
    return [device for devices in entry.DeviceIDs.values() for device in devices or ()]
