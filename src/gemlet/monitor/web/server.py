"""The page over HTTP, on the loopback interface: the page itself for everybody, answers for who has the token.

The token comes with the link, behind the `#`, so that it is in no log and no Referer, and goes with each question in a
header of its own. No cookie speaks for the browser: another site's page can neither ask nor change anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import logging
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import gemlet
from gemlet.errors import DaemonUnreachable, GemletError, Refused
from gemlet.monitor.few_connections import FewConnections

if TYPE_CHECKING:
    from gemlet.monitor.web.questions import Questions

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 1024
LENGTH = re.compile(r"[0-9]{1,9}")
MAX_FIELDS = 10  # of a query
SECONDS = 30.0  # for a request, or between two of a connection
SMALLEST_GZIP = 2000  # bytes; a smaller answer goes as it is


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


class Server(FewConnections):
    """Serves until `shutdown`. Raises OSError if the address is taken."""

    def __init__(self, address: tuple[str, int], questions: Questions, token: str) -> None:
        self.questions = questions
        self.token = token
        self.page = resources.files(__package__).joinpath("page.html").read_bytes()
        self.packed = gzip.compress(self.page, mtime=0)
        self.policy = policy(self.page)
        super().__init__(address, Handler)

    @property
    def link(self) -> str:
        """What to open, with the token."""
        host, port = self.server_address[:2]
        host = f"[{host!s}]" if ":" in str(host) else host
        return f"http://{host!s}:{port}/#{self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("http: a connection ended", exc_info=True)


def policy(page: bytes) -> str:
    """The Content-Security-Policy of the page: its own script and style, by their hashes, and nothing else."""

    def hashes(tag: bytes) -> str:
        found = re.findall(rb"<%s[^>]*>(.*?)</%s>" % (tag, tag), page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in found)

    return (
        f"default-src 'none'; script-src {hashes(b'script')}; style-src {hashes(b'style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Handler(BaseHTTPRequestHandler):
    server: Server
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    server_version = f"gemlet/{gemlet.__version__}"
    sys_version = ""
    timeout = SECONDS
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """The next request of the connection."""
        self.server.waits(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Reads what comes before the body; False: it makes no sense, which was said."""
        self.command, self.requestline = "", ""  # a refusal may come before they are known
        if not self.raw_requestline.strip():
            self.send_error(HTTPStatus.BAD_REQUEST, "the request is empty")
            return False
        try:
            if not super().parse_request():
                return False
        except TimeoutError:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, f"the request did not come within {self.timeout:g} s")
            return False
        try:
            url = urlsplit(self.path)
            self._path, self._query = url.path, dict(parse_qsl(url.query, max_num_fields=MAX_FIELDS))
        except ValueError as error:
            self.send_error(HTTPStatus.BAD_REQUEST, f"the address is not valid: {error}")
            return False
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request that makes no sense, and ends the connection: where the next one begins is not known."""
        self.close_connection = True
        self.request_version = self.protocol_version  # also to one that gives none
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def do_GET(self) -> None:
        """The page, or an answer."""
        if self._path == "/":
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8", packed=self.server.packed)
        elif self._path == "/favicon.ico":
            self._send(HTTPStatus.NO_CONTENT, b"", "image/x-icon")
        elif self._may():
            self._answer(lambda: self.server.questions.get(self._path, self._query))

    def do_HEAD(self) -> None:
        """As a GET of the page; answers have none."""
        self._send(HTTPStatus.OK if self._path == "/" else HTTPStatus.NOT_FOUND, b"", "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """A change, or a preview of one."""
        length = self.headers.get("Content-Length", "")
        if not LENGTH.fullmatch(length) or self.headers.get("Transfer-Encoding"):
            self.send_error(HTTPStatus.BAD_REQUEST, "a body has a length, in Content-Length")
            return
        if int(length) > MAX_BODY:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
            return
        try:
            body = self.rfile.read(int(length))
        except TimeoutError:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {self.timeout:g} s")
            return
        if len(body) < int(length):
            self.send_error(HTTPStatus.BAD_REQUEST, "the body is shorter than its length")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a body is application/json")
        elif self._may():
            self._answer(lambda: self.server.questions.post(self._path, body))

    def _may(self) -> bool:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer" and hmac.compare_digest(given.encode(), self.server.token.encode()):
            return True
        self._refuse(
            HTTPStatus.UNAUTHORIZED, "the token is missing or wrong", "open the link that `gemlet web` printed last"
        )
        return False

    def _answer(self, ask: Any) -> None:
        self.server.is_answered(self.connection)
        try:
            found, status = ask(), HTTPStatus.OK
        except KeyError:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of that name")
            return
        except DaemonUnreachable as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error), error.hint)
            return
        except Refused as error:
            self._refuse(HTTPStatus.CONFLICT, str(error), error.hint)
            return
        except GemletError as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error), error.hint)
            return
        except Exception:
            logger.exception("http request=%.200r failed", self.requestline)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed to answer; this is a defect", "report this")
            return
        self._send(status, json.dumps(found, separators=(",", ":")).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, message: str, hint: str | None = None) -> None:
        said = {"error": {"message": message, "hint": hint}}
        self._send(status, json.dumps(said).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, *, packed: bytes | None = None) -> None:
        encoding = None
        headers = getattr(self, "headers", {})  # not there yet where the first line makes no sense
        if "gzip" in headers.get("Accept-Encoding", "") and len(body) >= SMALLEST_GZIP:
            body, encoding = packed or gzip.compress(body, 1), "gzip"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (
            ("Content-Security-Policy", self.server.policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        logger.debug("http: %s", format % args)
