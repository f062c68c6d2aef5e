"""The processes that write into clients' shared memory, one for each user who has any: region_write.py says why."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING

from gemlet.serve.execution import arena
from gemlet.serve.execution.arena import Mapping
from gemlet.serve.execution.copying import copy
from gemlet.serve.server.frontend import region_write
from gemlet.serve.server.frontend.region_write import ORDER, REPLY, SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.inference_protocol.tensors import Buffer

END_S = 1.0  # for processes to end with the server
MOST = 64  # processes: of so many users at a time the server writes into shared memory


class TooMany(Exception):
    """Other users have all the processes that there may be."""


class Writers:
    """By user. A process starts when it is needed."""

    def __init__(self) -> None:
        self._writers: dict[int, _Writer] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def write(self, user: int, place: Callable[[], tuple[int, int]], data: Buffer) -> None:
        """``place``: gives the descriptor, which is passed on at once, and where in its file. Raises OSError, TooMany,
        and what ``place`` does."""
        writer = self._writers.get(user)
        if writer is None:
            if len(self._writers) >= MOST:
                raise TooMany
            writer = self._writers[user] = _Writer()
        try:
            await writer.write(place, data)
        except ConnectionError:
            self.end(user)  # it was killed
            raise

    def end(self, user: int) -> None:
        """The user has no shared memory any more. What is being written is written."""
        writer = self._writers.pop(user, None)
        if writer is not None:
            task = asyncio.ensure_future(writer.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Those that wait for their user end when they can."""
        for user in list(self._writers):
            self.end(user)
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_S)


class _Writer:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._connection: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def write(self, place: Callable[[], tuple[int, int]], data: Buffer) -> None:
        async with self._turn:
            if self._connection is None:
                self._connection, self._process = await _started()
            code = await self._order(self._connection, place, data)
        if code:
            raise OSError(code, os.strerror(code))

    async def _order(self, connection: socket.socket, place: Callable[[], tuple[int, int]], data: Buffer) -> int:
        large = len(data) > SMALL_BYTES
        staged = [await asyncio.to_thread(_staged, data)] if large else []
        try:
            descriptor, start = place()
            order = [ORDER.pack(start, len(data))] if large else [ORDER.pack(start, len(data)), data]
            socket.send_fds(connection, order, [descriptor, *staged])
        finally:
            for each in staged:
                os.close(each)
        reply = await asyncio.get_running_loop().sock_recv(connection, REPLY.size)
        if not reply:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        code: int
        (code,) = REPLY.unpack(reply)
        return code

    async def end(self) -> None:
        async with self._turn:
            if self._connection is not None:
                self._connection.close()
        if self._process is not None:
            await self._process.wait()


async def _started() -> tuple[socket.socket, asyncio.subprocess.Process]:
    """A new process, and what leads to it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", region_write.__file__, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    return ours, process


def _staged(data: Buffer) -> int:
    """A descriptor of a file in memory with this data."""
    descriptor = arena.create(len(data))
    try:
        mapped = Mapping(descriptor)
        copy([data], mapped.view)
        mapped.close()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
