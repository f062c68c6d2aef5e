"""The options of `gemlet serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.serve.execution.executor import ARENA_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.server import backend_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to serve. Ports: 0 = any, None = not at all. ``drain_s``: seconds that requests have to end at SIGTERM.

    ``ray``: address of the Ray cluster that executors are placed in; None: they run beside the server.
    ``scale``: least and most devices in use; executors of the others are ended. None: all stay.
    hang_s: an executor that spends this long on one batch is killed and started again.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    executor: backend_choice.Wanted = "auto"
    devices: tuple[int, ...] | None = None
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
    scale: tuple[int, int] | None = None
