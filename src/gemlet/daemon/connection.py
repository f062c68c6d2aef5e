"""The blocking reader of the daemon's API, used by the command line. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from gemlet.daemon import address, protocol
from gemlet.errors import DaemonError, DaemonUnreachable, GemletError, Refused, UsageError
from gemlet.typed_command import command

if TYPE_CHECKING:
    from types import TracebackType

    from gemlet.daemon.address import Endpoint


SIMULATE = "add --simulate: the daemon of the simulated machine runs"


def simulated_is_meant(endpoint: Endpoint) -> bool:
    """Whether a user who asked there, in vain, may have meant the simulated machine."""
    with contextlib.suppress(GemletError):  # this user's directory cannot be used
        return endpoint.kind == "user" and accepts(address.simulated())
    return False


def no_daemon(endpoint: Endpoint, reason: str = "") -> DaemonUnreachable:
    """The error for an endpoint where nobody listens."""
    if endpoint.unusable is not None:
        return DaemonUnreachable(endpoint.unusable.message, hint=endpoint.unusable.hint)
    message = f"no daemon at {endpoint.api}" + (f": {reason}" if reason else "")
    simulated = endpoint.kind == "simulated"
    if endpoint.kind == "explicit":  # `gemlet run` starts none there
        start = command("daemon", "--runtime-dir", endpoint.directory)
        hint = f"start one with `{start}`, or leave out --socket"
    elif simulated_is_meant(endpoint):
        hint = SIMULATE
    else:
        run, daemon = command("run", "--", "COMMAND", simulated=simulated), command("daemon", simulated=simulated)
        hint = f"start one with `{run}` or `{daemon}`"
    return DaemonUnreachable(message, hint=hint)


def other_version(what: str, answer: object) -> DaemonError:
    """The error for an answer that this version cannot read; ``what`` is wrong with it."""
    stop = command("stop", simulated=isinstance(answer, dict) and bool(answer.get("simulated")))
    hint = f"stop it with `{stop}`: it is of another version, and the next `gemlet run` starts one of this version"
    return DaemonError(f"the daemon's answer cannot be read: {what}", hint=hint)


def accepts(endpoint: Endpoint) -> bool:
    """Whether a daemon listens there."""
    if endpoint.unusable is not None:
        return False  # anybody may listen there
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.setblocking(False)
        return probe.connect_ex(str(endpoint.api)) in (0, errno.EAGAIN)  # the latter: many others wait there
    return False


def connect_in_turn(connection: socket.socket, path: str, seconds: float) -> None:
    """Connects, behind those who wait already: a listener takes some hundreds of callers at a time. Raises OSError:
    BlockingIOError if it is not this one's turn within ``seconds``.

    A socket of Python's with a timeout does not wait there: it fails, and one that calls without end keeps others out.
    """
    give_up = time.monotonic() + seconds
    connection.settimeout(None)
    while True:
        left = max(give_up - time.monotonic(), 1e-3)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(left), int(left % 1 * 1e6)))
        connection.connect(path)
        with contextlib.suppress(OSError):  # it is not connected: a signal came, which Python takes for success
            connection.getpeername()
            break
    connection.settimeout(seconds)


class _Moved(Exception):
    """The daemon did nothing: another one has its place, or it ended. Carries what to raise if nobody is there."""


class Connection:
    """One open connection. As a context manager it closes itself, and tells who is refused of a forgotten --simulate.

    Raises `DaemonUnreachable` if nobody listens there (or this user may not connect), `DaemonError` if too many others
    wait for it.
    """

    in_place_of: Endpoint | None = None  # it is to a daemon that was started because this one did not answer

    def __init__(self, endpoint: Endpoint, *, timeout: float = 5.0) -> None:
        """``timeout`` in seconds bounds every step."""
        self.endpoint = endpoint
        self._timeout = timeout
        self._connect()

    def _connect(self) -> None:
        if self.endpoint.unusable is not None:
            raise no_daemon(self.endpoint)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connect_in_turn(self._socket, str(self.endpoint.api), self._timeout)
        except BlockingIOError as error:  # not unreachable: nobody is to start another one for that
            self._socket.close()
            raise self._silence(error) from None
        except OSError as error:
            self._socket.close()
            absent = isinstance(error, FileNotFoundError)  # the ordinary case: nobody has started one
            raise no_daemon(self.endpoint, "" if absent else error.strerror or str(error)) from None
        self._reader = self._socket.makefile("rb")

    def call(self, op: str, **arguments: Any) -> Any:
        """Sends one request and returns the reply's data. If another daemon takes the place of this one, it is asked.

        Raises `Refused` if the daemon says no, `DaemonError` if it does not answer.
        """
        try:
            self.send(op, **arguments)
            return self._reply()
        except _Moved as moved:
            self.close()
            try:
                self._connect()
            except DaemonUnreachable:
                raise moved.args[0] from None
            self.send(op, **arguments)
            return self.reply()

    def send(self, op: str, **arguments: Any) -> None:
        """Sends one request. Raises `DaemonError` if the daemon does not take it."""
        # A daemon that turns us away says why before it hangs up: its answer is there even if ours cannot be sent.
        try:
            with contextlib.suppress(BrokenPipeError):
                self._socket.sendall(protocol.encode_request(op, arguments))
        except OSError as error:
            raise self._silence(error) from None

    @property
    def stream(self) -> socket.socket:
        """By which the kernel knows who listens there."""
        return self._socket

    def fileno(self) -> int:
        """Readable when `reply` has something to read."""
        return self._socket.fileno()

    def reply(self) -> Any:
        """The data of the next reply. Raises as `call`."""
        try:
            return self._reply()
        except _Moved as moved:
            raise moved.args[0] from None

    def _reply(self) -> Any:
        try:
            line = self._reader.readline(protocol.MAX_REPLY_BYTES)
        except ConnectionResetError as error:
            raise _Moved(self._silence(error)) from None
        except OSError as error:
            raise self._silence(error) from None
        if not line.endswith(b"\n"):
            closed = DaemonError(
                f"the daemon at {self.endpoint.api} closed the connection", hint=f"read its log: {self.endpoint.log}"
            )
            raise closed if line else _Moved(closed)
        try:
            return protocol.decode_reply(line)
        except Refused as refused:
            if refused.message == protocol.REPLACED:
                raise _Moved(refused) from None
            raise

    def _silence(self, error: OSError) -> DaemonError:
        return DaemonError(
            f"the daemon at {self.endpoint.api} does not answer: {error}",
            hint=f"read its log: {self.endpoint.log}",
        )

    def patience(self, seconds: float) -> None:
        """How long the next steps may take."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, Refused) and error.exit_code != UsageError.exit_code and simulated_is_meant(self.endpoint):
            error.hint = f"{error.hint}; or {SIMULATE}" if error.hint else SIMULATE


def connect(endpoints: list[Endpoint], *, timeout: float = 5.0) -> Connection:
    """A connection to the first of ``endpoints`` that has a daemon. Raises `DaemonUnreachable` if none has."""
    unreachable: DaemonUnreachable | None = None
    for endpoint in endpoints:
        try:
            return Connection(endpoint, timeout=timeout)
        except DaemonUnreachable as error:
            unreachable = error
    assert unreachable is not None, "no runtime directory was given to look in"
    raise unreachable
