"""How a daemon runs: what its command line decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.daemon.address import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """``idle_exit``: seconds without use after which it ends, None for never. ``history``: the file of the recorded
    history, None for none. ``take_over``: from the daemon that runs there, if one does."""

    endpoint: Endpoint
    config: str | None = None
    config_optional: bool = False
    policy: str | None = None
    ipc_dir: Path | None = None
    simulated: bool = False
    shared: bool = False
    idle_exit: float | None = None
    ready_fd: int | None = None
    take_over: bool = False
    history: Path | None = None
