"""grpc.health.v1.Health, which probes of gRPC ask: the server's readiness.

Its two messages have one field each, as the wrappers that come with protobuf have, and the same bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gemlet.serve.server.frontend.service import Service

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LOOK_S = 1.0  # between looks for those who watch


def handlers(service: Service, name: str) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Of the server as a whole, and of its service ``name``, which is the same."""

    def status(data: bytes) -> int:
        if StringValue.FromString(data).value not in {"", name}:
            return SERVICE_UNKNOWN
        return SERVING if service.ready else NOT_SERVING

    async def check(data: bytes, context: Any) -> bytes:
        found = await _read(data, context)
        if found == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"expected no service, or {name}")
        return Int32Value(value=found).SerializeToString()

    async def watch(data: bytes, context: Any) -> AsyncIterator[bytes]:
        told = None
        while True:
            found = await _read(data, context)
            if found != told:
                told = found
                yield Int32Value(value=found).SerializeToString()
            await asyncio.sleep(LOOK_S)

    async def _read(data: bytes, context: Any) -> int:
        try:
            return status(data)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
            raise

    return {
        "Check": grpc.unary_unary_rpc_method_handler(check),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
