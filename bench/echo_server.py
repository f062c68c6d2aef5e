"""An HTTP server that answers inference with the same bytes each time: what uvloop alone makes possible.

It asks a real server once for the answer to give, and for everything that is not inference; its statistics count.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

END = b"\r\n\r\n"


class Echo(asyncio.Protocol):
    """A connection. ``shared``: the answer and the count, of all connections."""

    def __init__(self, real: str, shared: dict[str, bytes | int]) -> None:
        self._real, self._shared = real, shared
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (length := _whole(self._buffer)) is not None:
            request, self._buffer = self._buffer[:length], self._buffer[length:]
            self._transport.write(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        method, path, _ = request.split(b" ", 2)
        if method == b"POST" and path.endswith(b"/infer"):
            self._shared["count"] += 1  # type: ignore[operator]
            if not self._shared["answer"]:
                self._shared["answer"] = _asked(self._real, request)
            return self._shared["answer"]  # type: ignore[return-value]
        with urllib.request.urlopen(f"http://{self._real}{path.decode()}") as reply:
            body = reply.read()
        if path.endswith(b"/stats"):
            body = _counted(body, int(self._shared["count"]))
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _whole(data: bytes) -> int | None:
    """Bytes of the first message, if it is whole."""
    head = data.find(END)
    if head < 0:
        return None
    at = data[:head].lower().find(b"\r\ncontent-length:")
    body = int(data[at + 17 : head].split(b"\r\n", 1)[0]) if at >= 0 else 0
    return head + len(END) + body if len(data) >= head + len(END) + body else None


def _asked(server: str, request: bytes) -> bytes:
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request)
        answer = b""
        while _whole(answer) is None:
            answer += connection.recv(1 << 16)
    return answer


def _counted(statistics: bytes, count: int) -> bytes:
    """As if each request had been a batch of 1 us."""
    document = json.loads(statistics)
    for model in document["model_stats"]:
        model["inference_count"] = model["execution_count"] = count
        for name, span in model["inference_stats"].items():
            span["count"], span["ns"] = (0, 0) if name == "fail" else (count, 1000 * count)
    return json.dumps(document).encode()


def _serve(real: str, told: Connection) -> None:
    async def run() -> None:
        shared: dict[str, bytes | int] = {"answer": b"", "count": 0}
        server = await asyncio.get_running_loop().create_server(lambda: Echo(real, shared), "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@contextmanager
def echo(real: str) -> Iterator[tuple[str, int]]:
    """Its address, and its process. ``real``: HOST:PORT of a server of the protocol."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(real, theirs), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield f"127.0.0.1:{ours.recv()}", process.pid
    finally:
        process.terminate()
        process.join()
