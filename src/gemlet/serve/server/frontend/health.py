"""grpc.health.v1.Health, which probes of gRPC ask: the server's readiness.

Its two messages have one field each, as the wrappers that come with protobuf have, and the same bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from gemlet.serve.server.frontend.grpc_wire import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gemlet.serve.server.frontend.grpc_call import GrpcCall
    from gemlet.serve.server.frontend.service import Service

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LOOK_S = 1.0  # between looks for those who watch


def procedures(service: Service, name: str) -> dict[str, Callable[[GrpcCall, bytes], Coroutine[Any, Any, None]]]:
    """Of the server as a whole, and of its service ``name``, which is the same."""

    def status(call: GrpcCall, data: bytes) -> int | None:
        """None: the call was ended."""
        try:
            if StringValue.FromString(data).value not in {"", name}:
                return SERVICE_UNKNOWN
        except DecodeError as error:
            call.end(Status.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
            return None
        return SERVING if service.ready else NOT_SERVING

    async def check(call: GrpcCall, data: bytes) -> None:
        found = status(call, data)
        if found == SERVICE_UNKNOWN:
            call.end(Status.NOT_FOUND, f"expected no service, or {name}")
        elif found is not None:
            call.respond(Int32Value(value=found).SerializeToString())

    async def watch(call: GrpcCall, data: bytes) -> None:
        told = None
        while (found := status(call, data)) is not None:
            if found != told:
                told = found
                call.send(Int32Value(value=found).SerializeToString())
            await asyncio.sleep(LOOK_S)

    return {"Check": check, "Watch": watch}
