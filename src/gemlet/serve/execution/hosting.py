"""Starts an executor's process on the machine this runs on, for a server on another one: what Ray's actors do.

The process listens on TCP and accepts one connection, from a server that knows its token. It lives as long as its host
does: it sees the end of its standard input.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import cast

from gemlet.readiness import await_readable

TOKEN = "GEMLET_EXECUTOR_TOKEN"  # in the environment, which other users of the machine cannot read
TOKEN_BYTES = 32  # of hexadecimal digits, the first thing that the server sends
STDERR = 2
OPEN_SECONDS = 100.0  # until it listens: sooner than the server asks again, for this answers one at a time
MOST_SILENT = 64  # connections that have not sent it: of more the first one ends


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens, and which token it expects first."""

    host: str
    port: int
    token: str
    pid: int


class Host:
    """One process at a time; a new one ends the one before."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, backend: str, environment: dict[str, str], address: str | None = None) -> Endpoint:
        """``address``: of this machine, as the server reaches it.

        Raises OSError if there is no such process.
        """
        self.stop()
        here = address or _address()
        token = secrets.token_hex(TOKEN_BYTES // 2)
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gemlet.serve.execution.worker", "--listen", here, "--announce",
                 str(writing), "--backend", backend],
                stdin=subprocess.PIPE, stdout=STDERR, pass_fds=(writing,),
                env=os.environ | environment | {TOKEN: token},
            )  # fmt: skip
        finally:
            os.close(writing)
        with os.fdopen(reading) as announced:
            opened = bool(await_readable([announced], OPEN_SECONDS))
            line = announced.readline() if opened else ""
        if not line:
            self.stop()
            why = "ended before it opened" if opened else f"did not within {OPEN_SECONDS:g} s open"
            raise OSError(f"the executor's process {why} its port")
        return Endpoint(here, int(line), token, self._process.pid)

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def listen(address: str, announce: int) -> socket.socket:
    """In the process: waits for the one connection that knows the token. Raises OSError."""
    token = os.environ.pop(TOKEN).encode()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        os.write(announce, b"%d\n" % server.getsockname()[1])
        os.close(announce)
        connection = _with(token, server)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _with(token: bytes, server: socket.socket) -> socket.socket:
    """The connection that begins with it. Nobody else's keeps that one waiting: it sends the token at once."""
    server.setblocking(False)
    read: dict[socket.socket, bytes] = {}  # of those that have sent a part of as much
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)

        def drop(connection: socket.socket) -> None:
            del read[connection]
            selector.unregister(connection)
            connection.close()

        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    with contextlib.suppress(OSError):  # it has gone, or there are no descriptors
                        connection, _ = server.accept()
                        connection.setblocking(False)
                        read[connection] = b""
                        selector.register(connection, selectors.EVENT_READ)
                    if len(read) > MOST_SILENT:
                        drop(next(iter(read)))
                elif (connection := cast("socket.socket", key.fileobj)) in read:
                    begun = read[connection]
                    read[connection] += _received(connection, len(token) - len(begun))
                    if secrets.compare_digest(read[connection], token):
                        del read[connection]
                        for other in list(read):
                            drop(other)
                        return connection
                    if len(read[connection]) in (len(begun), len(token)):
                        drop(connection)


def _received(connection: socket.socket, most: int) -> bytes:
    try:
        return connection.recv(most)
    except OSError:
        return b""


def _address() -> str:
    """That of this node, as Ray knows it."""
    ray = sys.modules.get("ray")
    return str(ray.util.get_node_ip_address()) if ray is not None else "127.0.0.1"
