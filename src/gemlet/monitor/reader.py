"""Reads the status document from a daemon as structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.audit import Outsider
from gemlet.daemon.connection import other_version
from gemlet.daemon.mps_state import MpsStatus
from gemlet.daemon.recorder import Recorded
from gemlet.daemon.status import Status

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
        raise other_version(str(error), document) from None
    if status.schema != protocol.STATUS_SCHEMA:
        raise other_version(f"schema {status.schema}, not {protocol.STATUS_SCHEMA}", document)
    return status


def decode_recorded(document: dict[str, Any]) -> Recorded:
    """The recorded history as structs. Raises `DaemonError`."""
    if document.get("schema") != protocol.HISTORY_SCHEMA:
        raise other_version(f"schema {document.get('schema')}, not {protocol.HISTORY_SCHEMA}", document)
    try:
        return msgspec.convert(document, Recorded)
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None


def decode_audit(document: dict[str, Any]) -> list[Outsider]:
    """The processes in a document of `gemlet audit`. Raises `DaemonError`."""
    if document.get("schema") != protocol.AUDIT_SCHEMA:
        raise other_version(f"schema {document.get('schema')}, not {protocol.AUDIT_SCHEMA}", document)
    try:
        return msgspec.convert(document.get("outside"), list[Outsider])
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None


def decode_mps(document: dict[str, Any]) -> MpsStatus:
    """The document of `gemlet mps status` as a struct. Raises `DaemonError`."""
    if document.get("schema") != protocol.MPS_SCHEMA:
        raise other_version(f"schema {document.get('schema')}, not {protocol.MPS_SCHEMA}", document)
    try:
        return msgspec.convert(document, MpsStatus)
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None
