"""One process of the load: sends each request when it is due and notes what comes back. Never waits for a reply."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gemlet.load.recording import Part, Recording
from gemlet.load.timer import Timer

if TYPE_CHECKING:
    from gemlet.load.http_client import Done
    from gemlet.load.job import Address, Job

MAX_BEHIND = 32  # requests sent without looking at replies when the generator is behind


class Client(Protocol):
    """A way to the server. ``waited``: requests for which there was no connection free."""

    waited: int

    async def open(self) -> None: ...

    def send(self, message: bytes, done: Done) -> None: ...

    async def close(self) -> None: ...


def client_of(address: Address, connections: int) -> Client:
    if address.grpc:
        from gemlet.load.grpc_client import GrpcClient  # noqa: PLC0415  18 MB that HTTP does not need

        return GrpcClient(address)
    from gemlet.load.http_client import HttpClient  # noqa: PLC0415

    return HttpClient(address, connections)


class Generator:
    """The ``part``-th of ``parts`` processes of a job; ``client`` is open."""

    def __init__(self, job: Job, client: Client, part: int = 0, parts: int = 1) -> None:
        self._job = job
        self._client = client
        self._schedule = job.schedule(part, parts)
        self._recordings = [Recording() for _ in job.streams]
        self._open = 0
        self._all_done = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self, start: float) -> Part:
        """Sends everything, the first second beginning at ``start`` of time.monotonic(); waits for the last replies."""
        cpu = time.process_time()
        began = time.monotonic()
        with Timer() as timer:
            self._sending = asyncio.create_task(self._send_all(start, timer))
            try:
                await self._sending
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
        ended = time.monotonic()
        sending = max(1e-9, ended - began)
        busy = (time.process_time() - cpu) / sending
        if self._open:
            self._all_done.clear()
            with contextlib.suppress(TimeoutError):  # what is open stays noted as without a reply
                await asyncio.wait_for(self._all_done.wait(), self._job.patience_s)
        seconds = max(0.0, min(self._job.seconds, ended - start)) if self._stopped else None
        return Part(self._recordings, busy, self._client.waited, seconds)

    def stop(self) -> None:
        """Sends nothing more; run() waits for replies as at the end, and returns the results so far."""
        if self._sending is not None and not self._sending.done():
            self._stopped = True
            self._sending.cancel()

    async def _send_all(self, start: float, timer: Timer) -> None:
        messages = [stream.messages for stream in self._job.streams]
        turns = [0] * len(messages)
        behind = 0
        for second, number in self._schedule:
            due = start + second
            if due > time.monotonic() or behind >= MAX_BEHIND:
                behind = 0
                await timer.until(due)
            behind += 1
            recording = self._recordings[number]
            request = recording.open(second)
            turn = turns[number]
            turns[number] = (turn + 1) % len(messages[number])
            self._open += 1
            self._client.send(messages[number][turn], partial(self._done, recording, (request, start)))

    def _done(
        self, recording: Recording, request: tuple[int, float], sent: float, done: float, failure: str | None
    ) -> None:
        number, start = request
        recording.close(number, sent - start, done - start, failure)
        self._open -= 1
        if not self._open:
            self._all_done.set()
