"""What the header of a call over gRPC asks for, and whether it may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gemlet.serve.server.frontend import access, connections, grpc_wire
from gemlet.serve.server.frontend.grpc_wire import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.server.frontend.grpc_call import GrpcCall, Handler

    Procedure = Callable[[GrpcCall], Handler]

TRACE_BYTES = 64  # of a traceparent, which has 55
NO_TOKEN = "expected `authorization: Bearer` in the metadata with one of the server's tokens"
ENDING = "the server is ending"
NOT_GRPC = [(b":status", b"415")]


class Server(connections.Known, Protocol):
    """What its connections know of the server; grpc_server.py is it."""

    procedures: Mapping[bytes, Procedure]


def read(server: Server, call: GrpcCall, given: Mapping[bytes, bytes]) -> Procedure | None:
    """The procedure that a call asks for, with what the call is to know of its header; None: it is answered."""
    if given.get(b":method") != b"POST" or not given.get(b"content-type", b"").startswith(b"application/grpc"):
        call.end_with(NOT_GRPC)
        return None
    path, tokens = given.get(b":path", b""), server.tokens
    procedure = server.procedures.get(path)
    if tokens is not None and not _open(path):
        call.token = tokens.of(given.get(b"authorization", b""))
        if not call.token:
            call.end(Status.UNAUTHENTICATED, NO_TOKEN)
            return None
    if procedure is None:
        call.end(Status.UNIMPLEMENTED, f"there is no procedure {path.decode('latin-1')} here")
        return None
    if b"traceparent" in given:
        call.trace = given[b"traceparent"][:TRACE_BYTES].decode("latin-1")
    call.encoding = given.get(b"grpc-encoding", b"identity")
    if call.encoding not in grpc_wire.ENCODINGS:
        call.end(Status.UNIMPLEMENTED, f"grpc-encoding is {call.encoding!r}: expected identity, gzip or deflate")
        return None
    try:
        timeout = given.get(b"grpc-timeout")
        call.remaining_ms = None if timeout is None else grpc_wire.timeout_ms(timeout)
    except ValueError as error:
        call.end(Status.INVALID_ARGUMENT, str(error))
        return None
    return procedure


def _open(path: bytes) -> bool:
    """Whether a procedure needs no token."""
    return path.decode("latin-1").rpartition("/")[2] in access.OPEN_PROCEDURES
