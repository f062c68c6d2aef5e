"""The request of HTTP/1.1 that comes on a connection, as httptools tells of its head and body, and how much of both
there may be. The parser keeps a header, and this a body, until they are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import httptools

from gemlet.serve.server.frontend import limits

if TYPE_CHECKING:
    from gemlet.serve.server.frontend.large_body import LargeBody

ENCODING_BYTES = 256
TRACE_BYTES = 64  # of a traceparent, which has 55


class Bad(Exception):
    """A request that is not HTTP as this server accepts it, or too large; the connection ends with it."""

    def __init__(self, status: int, message: str, reason: str = "invalid", more: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.more = more


class Connection(Protocol):
    """What the request that comes knows of its connection."""

    def admit(self) -> int:
        """Its header is whole: as many bytes its body may have. Raises Bad."""
        ...

    def complete(self) -> None:
        """All of it is here."""
        ...

    def large(self, begun: bytes | bytearray, room: int) -> LargeBody:
        """A body that begins so, and of which more comes. Raises MemoryError."""
        ...


class Incoming:
    """One after another of a connection. They know each other until ``close``."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        # Knows of the request, from its header to its end, its method and version; None: the connection has ended.
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.reset()

    def reset(self) -> None:
        """What was here is not; another one comes."""
        self.url = b""
        self.unfinished = 0  # bytes since the parser last reported anything
        self.json_length: int | None = None
        self.encoding = b""
        self.trace = b""
        self.expects = False
        self.authorization = b""
        self.token = b""  # that it has, as access.Tokens knows it
        self.origin = b""
        self.site = b""
        self.header_complete = False
        self.content_length = 0
        self.body: bytes | bytearray | LargeBody = b""
        self.body_bytes = 0
        self.header_bytes = 0
        self._transfer = b""  # encoding
        self._most = limits.CONTROL_BYTES

    def close(self) -> None:
        """Nothing more comes. Else the parser, this and the connection would keep each other."""
        self._connection = self.parser = None
        self.reset()

    @property
    def body_left(self) -> int:
        """Bytes of the body that are still to come, where the header is whole and says how long it is."""
        return max(0, self.content_length - self.body_bytes) if self.header_complete else 0

    def take(self, data: bytes) -> None:
        """Bytes of the client. Raises Bad."""
        self.unfinished += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, MemoryError):
                cause = Bad(503, "the server has no memory left for this request", "overload")
            raise (cause if isinstance(cause, Bad) else Bad(400, f"not HTTP: {error}")) from None
        if self.unfinished > limits.HEADER_BYTES:
            raise Bad(431, f"a header has more than {limits.HEADER_BYTES} bytes")

    def _feed(self, data: bytes) -> None:
        """The parser stops where a client offers another protocol; that is ignored, as HTTP allows."""
        while self.parser is not None:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if self.parser.get_method() == b"CONNECT":
                    raise Bad(501, "there is nothing to CONNECT to here") from None
                data = self._without_upgrade(self.parser) + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _without_upgrade(self, parser: httptools.HttpRequestParser) -> bytes:
        """The head of the request, whose headers are known already, as one that the parser reads a body after."""
        url, self.url, self.header_bytes, self.expects = self.url, b"", 0, False
        length = b"Content-Length: %d" % self.content_length
        if self._transfer:
            length = b"Transfer-Encoding: " + self._transfer  # which may be one that the parser refuses
        return b"%s %s HTTP/%s\r\nConnection: %s\r\n%s\r\n\r\n" % (
            parser.get_method(), url, parser.get_http_version().encode(),
            b"keep-alive" if parser.should_keep_alive() else b"close", length,
        )  # fmt: skip

    # What httptools calls

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.unfinished = 0
        self._count(len(name) + len(value))
        if self.header_complete:
            return  # a trailer, after a body in chunks
        name = name.lower()
        if name == b"content-length":
            self.content_length = int(value)  # digits: the parser has seen to that
        elif name == b"inference-header-content-length":
            if not value.isdigit() or len(value) > 12:
                raise Bad(400, "Inference-Header-Content-Length is not a number")
            self.json_length = int(value)
        elif name == b"transfer-encoding":
            self._transfer = value
        elif name == b"authorization":
            self.authorization = value
        elif name == b"origin":
            self.origin = value
        elif name == b"sec-fetch-site":
            self.site = value
        elif name == b"content-encoding":
            self.encoding = value[:ENCODING_BYTES].strip().lower()
        elif name == b"traceparent":
            self.trace = value[:TRACE_BYTES]
        elif name == b"expect":
            self.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self.header_complete = True
        if len(self.url) > limits.URL_BYTES:
            raise Bad(414, f"the address has {len(self.url)} bytes: expected at most {limits.URL_BYTES}")
        if self._connection is not None:
            self._most = self._connection.admit()
        self.authorization = self.origin = self.site = b""  # which may be long, and the body may take its time

    def on_body(self, body: bytes) -> None:
        self.unfinished = 0
        self.body_bytes += len(body)
        if self.body_bytes > self._most:
            raise Bad(413, f"the body has more than {self._most} bytes")
        if not self.body:
            self.body = body
        elif not isinstance(self.body, bytes):
            self.body.extend(body)
        else:
            self.body = bytearray(self.body + body)
        large = max(self.body_bytes, self.content_length) > limits.COPY_BYTES
        if large and isinstance(self.body, bytearray) and self._connection is not None:
            self.body = self._connection.large(self.body, self.content_length or self._most)

    def on_message_complete(self) -> None:
        # Where the client offers another protocol, the parser has not read the body, and raises after this: _feed().
        if self._connection is not None and self.parser is not None and not self.parser.should_upgrade():
            self._connection.complete()

    def _count(self, nbytes: int) -> None:
        self.header_bytes += nbytes
        if self.header_bytes > limits.HEADER_BYTES:
            raise Bad(431, f"the header has more than {limits.HEADER_BYTES} bytes")
