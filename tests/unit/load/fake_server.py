"""A small server of the Open Inference Protocol v2 whose every delay and refusal is chosen by a test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "fake",
    "inputs": [
        {"name": "image", "datatype": "FP32", "shape": [-1, 2, 3]},
        {"name": "message", "datatype": "BYTES", "shape": [-1, 1]},
    ],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}
Answer = tuple[float, int, str]  # seconds until the reply, status, words of a refusal


@dataclass
class FakeServer:
    """``answer`` gives each request (its number) a delay, a status and words. ``bodies``: what came."""

    answer: Callable[[int], Answer] = lambda _number: (0.001, 200, "")
    extensions: tuple[str, ...] = ("binary_tensor_data", "statistics")
    metadata: dict[str, Any] = field(default_factory=lambda: dict(METADATA))
    close_after: int | None = None  # a connection is closed after this many replies
    bodies: list[bytes] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        replies = 0
        try:
            while self.close_after is None or replies < self.close_after:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                status, document = await self.reply(head, body)
                text = msgspec.json.encode(document)
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
                await writer.drain()
                replies += 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def reply(self, head: str, body: bytes) -> tuple[int, Any]:
        path = head.split()[1]
        if path == "/v2":
            return 200, {"name": "fake", "version": "0", "extensions": list(self.extensions)}
        if path == "/v2/models/m":
            return 200, self.metadata
        if path == "/v2/models/m/stats":
            spans = {"success": 10.0, "queue": 1.0, "compute_input": 0.0, "compute_infer": 5.0, "compute_output": 0.0}
            count = len(self.bodies)
            stats = {span: {"count": count, "ns": int(count * ms * 1e6)} for span, ms in spans.items()}
            return 200, {"model_stats": [{"name": "m", "inference_stats": stats}]}
        if path != "/v2/models/m/infer":
            return 404, {"error": f"unknown: {path}"}
        number = len(self.bodies)
        self.bodies.append(body)
        self.heads.append(head)
        delay, status, message = self.answer(number)
        await asyncio.sleep(delay)
        return status, {"error": message} if message else {"model_name": "m", "outputs": []}

    @contextmanager
    def running(self) -> Iterator[FakeServer]:
        """In a thread with a loop of its own, so that tests may block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self.handle, "127.0.0.1", 0), loop).result()
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            asyncio.run_coroutine_threadsafe(self._end(server), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    @staticmethod
    async def _end(server: asyncio.Server) -> None:
        server.close()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
