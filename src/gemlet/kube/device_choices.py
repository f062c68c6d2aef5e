"""Pods that choose devices by an annotation for the runtime, or did, until they are gone.

Runtimes and their plugins go by the annotations that a pod had when its sandbox was made. When a container is refused,
the sandbox stays; so it helps nobody that the annotation is removed then, nor that the agent is another one. A reboot
ends all sandboxes, so the file need not outlive one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from gemlet import whole_file
from gemlet.decoding import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

NAME = "device-choices.json"  # in the agent's directory


class DeviceChoices:
    """Those of one node, kept in ``file`` for the next agent."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pods = dict(_read(file))  # uid -> annotation

    def of(self, uid: str) -> str | None:
        """The annotation of the pod with that uid; None if it never had one."""
        return self._pods.get(uid)

    def uids(self) -> set[str]:
        """Of all of them."""
        return set(self._pods)

    def add(self, uid: str, annotation: str) -> None:
        """Takes note of a pod."""
        if uid not in self._pods:
            self._pods[uid] = annotation
            self._write()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        if self._pods.pop(uid, None) is not None:
            self._write()

    def _write(self) -> None:
        try:
            whole_file.write(self._file, msgspec.json.encode(self._pods))
        except OSError as error:
            logger.warning("%s not written: %s; the next agent does not know these pods", self._file, error)


def _read(file: Path) -> Mapping[str, str]:
    try:
        return from_json(file.read_bytes(), dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        logger.warning("%s cannot be read: %s", file, error)
        return {}
