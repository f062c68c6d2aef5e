"""Chooses the MPS for the executors of `gemlet serve`: gemlet's own, unless the user names another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import DaemonUnreachable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
ANSWER_SECONDS = 60.0


def join(socket: str | None, environment: MutableMapping[str, str]) -> None:
    """Names gemlet's MPS in ``environment``, if it is on and nothing is named there yet.

    Otherwise programs find the control daemon in CUDA's own default place, or none, and say so themselves. ``socket``:
    of the daemon, as --socket has it. Raises DaemonError if the daemon does not answer.
    """
    if environment.get(PIPES):
        return
    try:
        with connect(address.candidates(socket)) as daemon:
            daemon.patience(ANSWER_SECONDS)
            status = daemon.call("mps", places=[])
    except DaemonUnreachable:
        return
    if status["state"] == "on":
        environment[PIPES] = str(status["pipe_directory"])
        environment["CUDA_MPS_LOG_DIRECTORY"] = str(status["log_directory"])
