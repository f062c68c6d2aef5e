"""Reads the status document from a daemon as structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.audit import Outsider
from gemlet.daemon.connection import other_version
from gemlet.daemon.history_recorder import Recorded
from gemlet.daemon.mps_state import MpsStatus
from gemlet.daemon.status import Status
from gemlet.daemon.tracing import Traced
from gemlet.decoding import convert

if TYPE_CHECKING:
    from gemlet.daemon.connection import Connection

Decoded = TypeVar("Decoded")


def read_status(connection: Connection) -> Status:
    """The daemon's status. Raises `DaemonError` if it speaks another schema."""
    return decode_status(connection.call("status"))


def decode_status(document: object) -> Status:
    """The document as structs. Raises `DaemonError`."""
    try:
        status = convert(document, Status)
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None
    if status.schema != protocol.STATUS_SCHEMA:
        raise other_version(f"schema {status.schema}, not {protocol.STATUS_SCHEMA}", document)
    return status


def decode_recorded(document: dict[str, Any]) -> Recorded:
    """The recorded history as structs. Raises `DaemonError`."""
    return _decoded(document, protocol.HISTORY_SCHEMA, document, Recorded)


def read_traced(connection: Connection, group: str, *, seconds: float, after: int | None = None) -> Traced:
    """The steps of the last ``seconds``, or those numbered ``after`` and later, up to the last that there is now.

    An answer of the daemon has a part of them. Raises `DaemonError`.
    """
    asked = {} if after is None else {"after": after}
    first = part = _traced(connection.call("trace", group=group, seconds=seconds, **asked))
    clients, steps, lost = {client.client: client for client in first.clients}, list(first.steps), first.lost
    while part.next < first.end:
        part = _traced(connection.call("trace", group=group, seconds=seconds, after=part.next))
        clients |= {client.client: client for client in part.clients}
        steps += part.steps
        lost = lost or part.lost
    return msgspec.structs.replace(
        part, begin_ns=first.begin_ns, clients=list(clients.values()), steps=steps, lost=lost
    )


def _traced(document: dict[str, Any]) -> Traced:
    if document.get("schema") != protocol.TRACE_SCHEMA:
        raise other_version(f"schema {document.get('schema')}, not {protocol.TRACE_SCHEMA}", document)
    try:
        return convert(document, Traced)
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None


def decode_audit(document: dict[str, Any]) -> list[Outsider]:
    """The processes in a document of `gemlet audit`. Raises `DaemonError`."""
    return _decoded(document, protocol.AUDIT_SCHEMA, document.get("outside"), list[Outsider])


def decode_mps(document: dict[str, Any]) -> MpsStatus:
    """The document of `gemlet mps status` as a struct. Raises `DaemonError`."""
    return _decoded(document, protocol.MPS_SCHEMA, document, MpsStatus)


def _decoded(document: dict[str, Any], schema: int, content: object, kind: type[Decoded]) -> Decoded:
    """``content`` of ``document``, if that is of ``schema``."""
    if document.get("schema") != schema:
        raise other_version(f"schema {document.get('schema')}, not {schema}", document)
    try:
        return convert(content, kind)
    except msgspec.ValidationError as error:
        raise other_version(str(error), document) from None
