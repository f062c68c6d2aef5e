"""HTTP/1.1 connections: requests in by httptools, answers out in the order of the requests.

An inference request is handed to the engine where its last byte is parsed, without a task; its answer is written when
the engine calls back. Everything else is a task of http_routes.py. The server does not read from a client that does not
read its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httptools

from gemlet.serve.dispatch.call import Call, Refusal
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.server.frontend import http_routes, infer_json
from gemlet.serve.server.frontend.http_exchange import JSON, Exchange

if TYPE_CHECKING:
    from gemlet.serve.dispatch.call import Tensor
    from gemlet.serve.server.frontend.infer_json import Form
    from gemlet.serve.server.frontend.service import Service

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 512 * 1024**2
MAX_PIPELINED = 64
MAX_TARGETS = 4096  # URLs of inference whose parts are remembered
MAX_TARGET_BYTES = 256
SLOW_S = 60.0  # for the rest of a request that has begun
BINARY = b"application/octet-stream"


class Bad(Exception):
    """A request that is not HTTP as this server accepts it; the connection ends with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.began: float | None = None  # loop time at which a request began that is not complete
        self._service = server.service
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._paused = False
        self._full = False
        self._json_length: int | None = None
        self._reset()

    @property
    def draining(self) -> bool:
        return self.server.draining

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass of it
        self.server.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self._transport = None
        self._exchanges.clear()
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self.began is None:
            self.began = self.server.loop.time()
        self._unfinished += len(data)
        try:
            self._parser.feed_data(data)
            if self._unfinished > MAX_HEADER_BYTES:  # the parser keeps a header until it is whole
                raise Bad(431, f"a header has more than {MAX_HEADER_BYTES} bytes")
        except Bad as bad:
            self._fail(bad)
        except httptools.HttpParserUpgrade:
            self._fail(Bad(501, "there is no protocol to upgrade to here: ask again without `Upgrade`"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, Bad) else Bad(400, f"not HTTP: {error}"))

    def pause_writing(self) -> None:
        self._full = True
        self._regulate()

    def resume_writing(self) -> None:
        self._full = False
        self._regulate()

    @property
    def idle(self) -> bool:
        """Whether no answer is due."""
        return not self._exchanges

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing can go on before the client sends more: no answer is due, and its bytes are read."""
        return self.idle and not self._paused

    def close(self) -> None:
        """Ends the connection after what is written."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def flush(self) -> None:
        """Writes what the oldest exchange has, and those after it if it is done."""
        transport = self._transport
        if transport is None:
            return
        while self._exchanges:
            exchange = self._exchanges[0]
            for piece in exchange.take():
                transport.write(piece)
            if not exchange.ended:
                break
            self._exchanges.popleft()
            if not exchange.keep_alive:
                self.close()
                return
        if self._paused:
            self._regulate()

    # What httptools calls

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unfinished = 0
        self._count(len(name) + len(value))
        name = name.lower()
        if name == b"content-length":
            if int(value) > MAX_BODY_BYTES:  # digits: the parser has seen to that
                raise Bad(413, f"the body has {int(value)} bytes; expected at most {MAX_BODY_BYTES}")
        elif name == b"inference-header-content-length":
            if not value.isdigit() or len(value) > 12:
                raise Bad(400, "Inference-Header-Content-Length is not a number")
            self._json_length = int(value)
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()
        elif name == b"expect":
            self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self._expects and self._transport is not None and not self._exchanges:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            raise Bad(413, f"the body has more than {MAX_BODY_BYTES} bytes")

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the parser has not read its body, and raises HttpParserUpgrade after this
        exchange = Exchange(self)
        exchange.keep_alive = self._parser.should_keep_alive()
        self._exchanges.append(exchange)
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        url, header, encoding = self._url, self._json_length, self._encoding
        method = self._parser.get_method()
        exchange.head_only = method == b"HEAD"
        self._reset()
        self.began = None
        try:
            if encoding:
                body = _decompressed(body, encoding)
            target = self.server.target(url) if method == b"POST" else None
            if target is not None:
                self._infer(exchange, target, body, header)
            else:
                self._route(exchange, method, url, body)
        except Refusal as refusal:
            exchange.refuse(refusal)
        except Exception as error:
            logger.exception("a request failed")
            exchange.refuse(Refusal("failed", f"{type(error).__name__}: {error}"))
        if len(self._exchanges) >= MAX_PIPELINED:
            self._regulate()

    # What becomes of a request

    def _infer(self, exchange: Exchange, target: tuple[str, str], body: bytes, header: int | None) -> None:
        model, version = target
        given, form, parameters = infer_json.parse(body, header, self._service.regions)
        form.model, form.version = model, version
        call = Call(model, given, partial(_answer, self._service, exchange, form), now_ms(), version)
        if parameters:
            infer_json.options(parameters, call)
        served = self._service.engine.models.get(model)
        if form.outputs is not None and served is not None:
            infer_json.check_outputs(form, served.spec)
        self._service.engine.infer(call)

    def _route(self, exchange: Exchange, method: bytes, url: bytes, body: bytes) -> None:
        work = http_routes.respond(self._service, exchange, method.decode("latin-1"), url, body)
        task = self.server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, bad: Bad) -> None:
        self._closing = True  # nothing after this is read
        exchange = Exchange(self)
        exchange.keep_alive = False
        self._exchanges.append(exchange)
        exchange.document({"error": bad.message, "reason": "invalid"}, bad.status)

    def _count(self, nbytes: int) -> None:
        self._header_bytes += nbytes
        if self._header_bytes > MAX_HEADER_BYTES:
            raise Bad(431, f"the header has more than {MAX_HEADER_BYTES} bytes")

    def _reset(self) -> None:
        self._url = b""
        self._header_bytes = 0
        self._unfinished = 0  # bytes since the parser last reported anything
        self._json_length = None
        self._encoding = b""
        self._expects = False
        self._body: list[bytes] = []
        self._body_bytes = 0

    def _regulate(self) -> None:
        wanted = self._full or len(self._exchanges) >= MAX_PIPELINED
        if wanted == self._paused or self._transport is None or self._transport.is_closing():
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


def _answer(service: Service, exchange: Exchange, form: Form, result: list[Tensor] | Refusal) -> None:
    """Called by the engine."""
    if isinstance(result, Refusal):
        exchange.refuse(result)
        return
    served = service.engine.models.get(form.model)
    try:
        if served is None:
            raise Refusal("unknown", f"{form.model} was unloaded")
        json, binary = infer_json.render(form, served.spec, infer_json.chosen(form, result), service.regions)
    except Refusal as refusal:
        exchange.refuse(refusal)
        return
    except Exception as error:  # an output that is gone since a model was reloaded
        logger.exception("an answer of %s cannot be written", form.model)
        exchange.refuse(Refusal("failed", f"{type(error).__name__}: {error}"))
        return
    if binary:
        exchange.answer(200, BINARY, [json, *binary], b"Inference-Header-Content-Length: %d\r\n" % len(json))
    else:
        exchange.answer(200, JSON, [json])


class HttpServer:
    """Listens, and knows its connections."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.draining = False
        self._servers: list[asyncio.Server] = []
        self._targets: dict[bytes, tuple[str, str]] = {}

    async def listen(self, host: str, port: int) -> int:
        """The port. Raises OSError if it is not to be had."""
        server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def target(self, url: bytes) -> tuple[str, str] | None:
        """(model, version) of an inference URL; None for any other."""
        known = self._targets.get(url)
        if known is not None:
            return known
        parts = url.partition(b"?")[0].decode("latin-1").split("/")
        target = None
        if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 5:
            target = (unquote(parts[3]), "")
        elif parts[:3] == ["", "v2", "models"] and parts[-1] == "infer" and len(parts) == 7 and parts[4] == "versions":
            target = (unquote(parts[3]), unquote(parts[5]))
        if target is not None and len(self._targets) < MAX_TARGETS and len(url) <= MAX_TARGET_BYTES:
            self._targets[url] = target
        return target

    def close_slow(self) -> None:
        """Ends connections whose request has been on its way for too long; to be called now and then."""
        now = self.loop.time()
        for connection in list(self.connections):
            if connection.waits_for_client and now - (connection.began or now) > SLOW_S:
                connection.close()

    def drain(self) -> None:
        """No new connections; the next answer of each is its last. Idle ones stay, so that no request is cut off."""
        self.draining = True
        for server in self._servers:
            server.close()

    def close_idle(self) -> None:
        """Ends the connections to which no answer is due; a request that is half here is still waited for."""
        for connection in list(self.connections):
            if connection.idle and connection.began is None:
                connection.close()

    async def close(self) -> None:
        """Ends what is left."""
        self.drain()
        for connection in list(self.connections):
            connection.close()
        for server in self._servers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 1)


def _decompressed(body: bytes, encoding: bytes) -> bytes:
    """Raises Bad, Refusal."""
    if encoding == b"identity":
        return body
    if encoding not in {b"gzip", b"deflate"}:
        raise Refusal(
            "invalid", f"content encoding {encoding.decode('latin-1')} is not supported: expected gzip or deflate"
        )
    try:
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS if encoding == b"gzip" else zlib.MAX_WBITS)
        plain = inflater.decompress(body, MAX_BODY_BYTES)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise Refusal("invalid", f"the body is not {encoding.decode()}: {error}") from None
    if inflater.unconsumed_tail:
        raise Refusal("invalid", f"the body has more than {MAX_BODY_BYTES} bytes when decompressed")
    return plain
