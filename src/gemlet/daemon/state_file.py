"""Files in its directory in which a daemon leaves word for the next one: read with distrust."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gemlet import paths, whole_file
from gemlet.decoding import from_json

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024**2  # a thousand groups, or four thousand programs, take one MB

T = TypeVar("T")


class StateFile:
    """``failure``: why it could not be written last, None if it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None

    def load(self, kind: type[T]) -> T | None:
        """What lies there, as ``kind``. None if there is no such file or, with a warning, if it is not what a daemon of
        this user or of root can have written.
        """
        try:
            return from_json(_read(self.path), kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            logger.warning("state file=%s cannot be used: %s", self.path, error)
            return None

    def write(self, content: bytes) -> bool:
        """Replaces what lies there. False, and one warning, while it cannot: the old one stands then."""
        try:
            whole_file.write(self.path, content)
        except OSError as error:
            if self.failure is None:
                logger.warning("state file=%s cannot be written: %s", self.path, error)
            self.failure = f"{self.path} cannot be written: {error.strerror or error}"
            return False
        self.failure = None
        return True


def _read(path: Path) -> bytes:
    try:
        descriptor = paths.open_regular(path, os.O_NOFOLLOW)
    except paths.NotRegularError:
        raise ValueError("it is not a regular file") from None
    with os.fdopen(descriptor, "rb") as file:
        owner = os.fstat(descriptor).st_uid
        if owner not in (0, os.getuid()):
            raise ValueError(f"it belongs to uid {owner}")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return content
