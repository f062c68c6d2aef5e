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
ENDLESS = "Watch"  # goes on until the client ends it
LOOK_S = 1.0  # between looks for those who watch


class Readiness:
    """One look at the service every second for all who watch, while there are any: each of them costs nothing, nor
    does its end, of which thousands come at once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: set[asyncio.Future[None]] = set()  # for news; an Event would search a list for each that ends
        self._watching = 0
        self._looking: asyncio.Task[None] | None = None

    async def news(self) -> None:
        """Returns when the service is ready, or is not any more."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(self._service.ready))
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        self._watching += 1
        try:
            await news
        finally:
            self._waiting.discard(news)
            self._watching -= 1
            if not self._watching and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self, told: bool) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._service.ready != told:
                told, waiting = self._service.ready, self._waiting
                self._waiting = set()
                for news in waiting:
                    if not news.done():  # or its client has gone in this moment
                        news.set_result(None)


def procedures(service: Service, name: str) -> dict[str, Callable[[GrpcCall, bytes], Coroutine[Any, Any, None]]]:
    """Of the server as a whole, and of its service ``name``, which is the same."""
    readiness = Readiness(service)

    def known(call: GrpcCall, data: bytes) -> bool | None:
        """Whether there is such a service; None: the call was ended."""
        try:
            return StringValue.FromString(data).value in {"", name}
        except DecodeError as error:
            call.end(Status.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
            return None

    def status() -> bytes:
        return Int32Value(value=SERVING if service.ready else NOT_SERVING).SerializeToString()

    async def check(call: GrpcCall, data: bytes) -> None:
        found = known(call, data)
        if found:
            call.respond([status()])
        elif found is not None:
            call.end(Status.NOT_FOUND, f"expected no service, or {name}")

    async def watch(call: GrpcCall, data: bytes) -> None:
        found = known(call, data)
        if found is None:
            return
        if not found:
            call.send([Int32Value(value=SERVICE_UNKNOWN).SerializeToString()])
            await asyncio.Event().wait()  # until the client ends it
        told = b""
        while True:
            if told != status():
                told = status()
                call.send([told])
            await readiness.news()

    return {"Check": check, ENDLESS: watch}
