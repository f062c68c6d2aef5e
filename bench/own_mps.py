"""`gemlet mps start` and `stop` around a benchmark, with a daemon of its own that is gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK_S = 90.0


@contextlib.contextmanager
def mps_of_gemlet(*, simulate: bool = False) -> Iterator[dict[str, str]]:
    """The environment in which programs find it; MPS and the daemon end even if programs still use them.

    simulate: the simulated machine's. Raises RuntimeError if it does not start or does not stop.
    """
    # Below /tmp whatever TMPDIR says: the path of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="gemlet-bench-", dir="/tmp"))
    env = os.environ | {"GEMLET_RUNTIME_DIR": str(folder)}
    env.pop("GEMLET_SOCKET", None)
    env.pop("CUDA_MPS_PIPE_DIRECTORY", None)
    more = ["--simulate"] if simulate else []
    try:
        asked("mps", "start", *more, env=env)
        try:
            status = json.loads(asked("mps", "status", "-o", "json", *more, env=env))
            yield env | {
                "CUDA_MPS_PIPE_DIRECTORY": status["pipe_directory"],
                "CUDA_MPS_LOG_DIRECTORY": status["log_directory"],
            }
        finally:
            asked("mps", "stop", "--force", *more, env=env)
    finally:
        with contextlib.suppress(RuntimeError):  # there is none if it never started
            asked("stop", *more, env=env)
        shutil.rmtree(folder, ignore_errors=True)


def asked(*arguments: str, env: dict[str, str]) -> str:
    """stdout of a verb. Raises RuntimeError with its words."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gemlet", *arguments],
            env=env, capture_output=True, text=True, timeout=ASK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"gemlet {' '.join(arguments)}: no end after {ASK_S:g} s") from None
    if done.returncode:
        raise RuntimeError(f"gemlet {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
