"""The options of `gemlet serve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemlet.serve.execution.executor import ARENA_BYTES
from gemlet.serve.server.frontend.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gemlet.serve.server import backend_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to serve. Ports: 0 = any, None = not at all. ``drain_s``: seconds that requests have to end at SIGTERM.

    ``ray``: address of the Ray cluster that executors are placed in; None: they run beside the server.
    ``gpus``: how many of each kind, by the name of its profiles, in place of ``devices`` and ``profiles``.
    ``scale``: least and most devices in use; executors of the others are ended. None: all stay.
    hang_s: an executor that spends this long on one batch is killed and started again.
    traces: whether OpenTelemetry gets the stages of requests.
    http_socket, grpc_socket: Unix sockets, in place of ports. tls: certificate chain and key; tokens: who may ask.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    http_socket: Path | None = None
    grpc_socket: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    limits: Limits = field(default_factory=Limits)
    executor: backend_choice.Wanted = "auto"
    devices: tuple[int, ...] | None = None
    gpus: Mapping[str, int] | None = None
    profiles: Path | None = None
    plan: Path | None = None
    demand: Path | None = None
    replan: bool = True
    watch: bool = False
    drop: bool = True
    shared_memory: bool = True
    drain_s: float = 10.0
    hang_s: float = 120.0
    arena_bytes: int = ARENA_BYTES
    ray: str | None = None
    request_log: Path | None = None
    traces: bool = False
    scale: tuple[int, int] | None = None
