"""The API socket: reads requests, one a line, and writes the service's answers. No input can end it.

Bounds: sizes of requests and answers, number of connections, and how long a peer may keep one open without asking
anything. Nobody can take all connections: a user may have another only while more are free than the user has, as for
programs (native/server/fair_limit.hpp), and some are kept for root and the daemon's own user. Nobody can take all the
daemon's time (answer_order.py), nor its memory: of a user's answers, one is made and sent at a time, except small ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.answer_order import AnswerOrder
from gemlet.daemon.fair_limit import may_take_another
from gemlet.daemon.foreign_files import Listener
from gemlet.daemon.processes import Peer, administers, caller
from gemlet.daemon.requests import (
    AnyRequest,
    Environment,
    Join,
    Note,
    OpenShare,
    Ping,
    Remove,
    Set,
    Shutdown,
    TakeOver,
    decode,
)
from gemlet.errors import DaemonError, GemletError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256  # native/server/server.cpp leaves descriptors for them (kOtherFiles)
FOR_ADMINISTRATORS = 16  # of these
IDLE_SECONDS = 300.0
WRITE_SECONDS = 10.0
CLOSE_SECONDS = 1.0
# Their answers do not grow with what users make; all others may. Nobody's program waits to start for a slow reader.
SMALL = (Environment, Join, Note, OpenShare, Ping, Remove, Set, Shutdown, TakeOver)

Handler = Callable[[AnyRequest, Peer], Awaitable[Any]]


class Api:
    """Serves ``handler`` on a Unix socket. ``account``: the uid as which a uid is counted. ``shared``: users who do not
    trust each other meet here."""

    def __init__(
        self, handler: Handler, account: Callable[[int], int] = lambda uid: uid, *, shared: bool = False
    ) -> None:
        self._handler = handler
        self._shared = shared
        self._account = account
        self._open: set[asyncio.StreamWriter] = set()
        self._connections: Counter[int] = Counter()  # that are served, by account
        self._conversations: set[asyncio.Task[None]] = set()
        self._order = AnswerOrder()
        self._large: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)  # by account, of those with connections

    @contextlib.asynccontextmanager
    async def serve(self, path: Path, *, mode: int, replaces: bool = False) -> AsyncIterator[None]:
        """Accepts connections at ``path`` while entered. ``replaces``: another daemon listens there, until it ends."""
        place = path.with_name(path.name + "~") if replaces else path
        if replaces:
            place.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._connected,
            sock=self._listener(place, mode),
            limit=protocol.MAX_REQUEST_BYTES,
            backlog=MAX_CONNECTIONS,
            start_serving=False,
        )
        await server.start_serving()
        if replaces:
            place.rename(path)
        try:
            yield
        finally:
            server.close()
            for writer in list(self._open):
                writer.close()
            if self._conversations:  # each ends by itself now that its connection is closed
                await asyncio.wait(self._conversations, timeout=CLOSE_SECONDS)

    @staticmethod
    def _listener(place: Path, mode: int) -> Listener:
        listener = Listener()
        try:
            if place.is_socket():
                place.unlink()
            listener.bind(str(place))
            place.chmod(mode)  # before anybody can connect
        except BaseException:
            listener.close()
            raise
        return listener

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)
        try:
            peer = caller(writer.get_extra_info("socket"), shared=self._shared)
            account = self._account(peer.uid)
            if self._has_room(peer.uid, account):
                self._connections[account] += 1
                try:
                    await self._converse(reader, writer, peer, account)
                finally:
                    self._connections[account] -= 1
                    self._connections += Counter()  # without those at 0
                    if account not in self._connections:
                        self._large.pop(account, None)
            else:
                busy = DaemonError(
                    f"too many connections to the daemon: this user has {self._connections[account]} of"
                    f" {MAX_CONNECTIONS}",
                    hint="close connections, such as those of `gemlet top`",
                )
                await _write(writer, _failure(busy))
        except (OSError, TimeoutError):
            logger.debug("api connection lost")
        finally:
            self._open.discard(writer)
            writer.close()

    def _has_room(self, uid: int, account: int) -> bool:
        return may_take_another(
            MAX_CONNECTIONS,
            taken=self._connections.total(),
            theirs=self._connections[account],
            kept=FOR_ADMINISTRATORS,
            administers=administers(uid),
        )

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, account: int
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    await _write(writer, _failure(DaemonError("the request is not whole: it has no end of line")))
                return
            except asyncio.LimitOverrunError:
                too_long = DaemonError(f"the request is longer than {protocol.MAX_REQUEST_BYTES} bytes")
                await _write(writer, _failure(too_long))
                return  # the rest of the line cannot be told from the next request
            await self._order.take(account)
            try:
                request = decode(line)
            except GemletError as error:
                await _write(writer, _failure(error))
                continue
            if not isinstance(request, SMALL) and not administers(peer.uid):
                async with self._large[account]:
                    await self._order.take(account)  # what it waited for took its time
                    await _write(writer, await self._answer(request, peer, account))
            else:
                await _write(writer, await self._answer(request, peer, account))

    async def _answer(self, request: AnyRequest, peer: Peer, account: int) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            data = await self._handler(request, peer)
            answer = msgspec.json.encode({"ok": True, "data": data}) + b"\n"
        except GemletError as error:
            return _failure(error)
        except Exception:  # a defect must cost one answer, not the daemon
            logger.exception("api pid=%d uid=%d request=%.200r failed", peer.pid, peer.uid, request)
            return _failure(
                DaemonError("the daemon failed to answer; this is a defect", hint="read its log, and report this")
            )
        finally:
            if not administers(peer.uid):
                self._order.rest(account, loop.time() - began)
        if len(answer) > protocol.MAX_REPLY_BYTES:
            return _failure(
                DaemonError(
                    f"the answer has {len(answer)} bytes, and at most {protocol.MAX_REPLY_BYTES} can be read",
                    hint="ask for less: one group, a shorter time, fewer points",
                )
            )
        return answer


def _failure(error: GemletError) -> bytes:
    # str(), not .message: a ConfigError's text carries file, line and column.
    said = {"message": str(error), "hint": error.hint, "exit_code": error.exit_code}
    return msgspec.json.encode({"ok": False, "error": said}) + b"\n"


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(WRITE_SECONDS):
        await writer.drain()
