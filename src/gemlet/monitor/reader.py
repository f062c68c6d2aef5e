"""Reads the status document from a daemon as structs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.mps_state import MpsStatus
from gemlet.daemon.status import Status
from gemlet.errors import DaemonError

if TYPE_CHECKING:
    from gemlet.daemon.connection import Connection


def read_status(connection: Connection) -> Status:
    """The daemon's status. Raises `DaemonError` if it speaks another schema."""
    return decode_status(connection.call("status"))


def decode_status(document: object) -> Status:
    """The document as structs. Raises `DaemonError`."""
    try:
        status = msgspec.convert(document, Status)
    except msgspec.ValidationError as error:
        raise _other_version(str(error)) from None
    if status.schema != protocol.STATUS_SCHEMA:
        raise _other_version(f"schema {status.schema}, not {protocol.STATUS_SCHEMA}")
    return status


def decode_mps(document: object) -> MpsStatus:
    """The document of `gemlet mps status` as a struct. Raises `DaemonError`."""
    try:
        return msgspec.convert(document, MpsStatus)
    except msgspec.ValidationError as error:
        raise _other_version(str(error)) from None


def _other_version(what: str) -> DaemonError:
    return DaemonError(f"the daemon's status cannot be read: {what}", hint="restart it after an upgrade: `gemlet stop`")
