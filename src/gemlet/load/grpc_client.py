"""gRPC for a load generator: ModelInfer with messages that are ready as bytes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gemlet.load.http_client import Done, shortened
from gemlet.load.job import LoadError

if TYPE_CHECKING:
    from gemlet.load.job import Address

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
CONNECT_S = 5.0


class GrpcClient:
    """Requests to one address over one channel."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel: grpc.aio.Channel | None = None
        self._infer: Any = None  # bytes in, bytes out
        self.waited = 0  # streams of a channel are as many as the server allows

    async def open(self) -> None:
        """Raises LoadError if there is no server."""
        where = f"{self._address.host}:{self._address.port}"
        if self._address.secure:
            self._channel = grpc.aio.secure_channel(where, grpc.ssl_channel_credentials(), OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(where, OPTIONS)
        try:
            await asyncio.wait_for(self._channel.channel_ready(), CONNECT_S)
        except TimeoutError:
            await self._channel.close()
            raise LoadError(f"no server at {self._address}") from None
        self._infer = self._channel.unary_unary(METHOD)

    def send(self, message: bytes, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._call(message, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def _call(self, message: bytes, done: Done) -> None:
        sent = time.monotonic()
        failure = None
        try:
            await self._infer(message)
        except grpc.aio.AioRpcError as error:
            failure = f"{error.code().name} {shortened(error.details() or '')}".strip()
        done(sent, time.monotonic(), failure)
