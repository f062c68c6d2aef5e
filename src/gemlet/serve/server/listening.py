"""Where `gemlet serve` listens, and for whom: beyond this machine only for clients with a token, by TLS."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, TypeVar

from gemlet.errors import UsageError
from gemlet.serve.server.frontend.access import Tokens
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.tls_certificate import Certificate

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.server.frontend.service import Service
    from gemlet.serve.server.options import ServerOptions

Frontend = TypeVar("Frontend", HttpServer, GrpcServer)


class Listening:
    """Opens what was asked for. Raises UsageError, ConfigError for what would be open to anybody or is not valid."""

    def __init__(self, options: ServerOptions, service: Service) -> None:
        self._options = options
        self._service = service
        if bool(options.tls_certificate) != bool(options.tls_key):
            raise UsageError("--tls-certificate and --tls-key belong together", hint="give both, in PEM")
        self._opened: list[HttpServer | GrpcServer] = []
        self._tokens = Tokens(options.token_file) if options.token_file is not None else None
        certificate, key = options.tls_certificate, options.tls_key
        self._certificate = Certificate(certificate, key) if certificate is not None and key is not None else None
        ports = (
            options.http_port is not None and options.http_socket is None,
            options.grpc_port is not None and options.grpc_socket is None,
        )
        if any(ports) and not (options.tls_certificate and self._tokens) and not _is_loopback(options.host):
            raise UsageError(
                f"{options.host} can be reached from other machines: expected TLS and tokens for that",
                hint="give --tls-certificate, --tls-key and --token-file, or listen on 127.0.0.1 behind a proxy that "
                "asks who is there",
            )

    async def http(self) -> tuple[HttpServer | None, int | None]:
        """The server and its port, where there are such."""
        given = self._options
        return await self._open(HttpServer, "HTTP", given.http_socket, given.http_port, "http/1.1")

    async def grpc(self) -> tuple[GrpcServer | None, int | None]:
        """The server and its port, where there are such."""
        given = self._options
        return await self._open(GrpcServer, "gRPC", given.grpc_socket, given.grpc_port, "h2")

    def refresh(self) -> None:
        """Follows the files of tokens and of the certificate; to be called from time to time."""
        if self._tokens is not None and self._tokens.refresh():
            for server in self._opened:
                server.revoke()
        if self._certificate is not None:
            self._certificate.refresh()

    async def _open(
        self, kind: type[Frontend], what: str, path: Path | None, port: int | None, protocol: str
    ) -> tuple[Frontend | None, int | None]:
        if path is None and port is None:
            return None, None
        given = self._options
        server = kind(self._service, given.limits, self._tokens)
        self._opened.append(server)
        tls = self._certificate.context(protocol) if self._certificate is not None and path is None else None
        try:
            if path is not None:
                await server.listen_at(str(path))
                return server, None
            assert port is not None
            return server, await server.listen(given.host, port, tls)
        except OSError as error:
            raise self._cannot_listen(what, path, port, error) from None

    def _cannot_listen(self, what: str, path: Path | None, port: int | None, error: OSError) -> UsageError:
        option = f"--{what.lower()}"
        if path is not None:
            used = error.errno == errno.EADDRINUSE
            message = "another process listens there" if used else error.strerror or str(error)
            return UsageError(f"{what} cannot listen at {path}: {message}", hint=f"choose another {option}-socket")
        host = self._options.host
        if error.errno == errno.EADDRINUSE:
            shown = f"`ss -ltnp 'sport = :{port}'` shows the process that has this one"
            hint = f"use {option}-port 0 for any free port; {shown}"
            return UsageError(f"{what} port {port} is in use on {host}", hint=hint)
        hint = f"choose a {option}-port above 1023, which needs no privileges, or another --host"
        return UsageError(f"{what} cannot listen on {host}:{port}: {error.strerror or error}", hint=hint)


def _is_loopback(host: str) -> bool:
    """Whether every address that this name has is of this machine only."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # then opening the port fails and says why
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
