"""The tritonserver in the wheel of nvidia-pytriton: a real one, which runs on a CPU with the Python backend."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

INSTALLED = Path(__file__).parents[2] / "build" / "triton"  # a virtual environment
PATIENCE_S = 120.0


def _ports(count):
    """Ports that are free now."""
    with contextlib.ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def triton(repository, scratch, controlled=()):
    """Serves it; HOST:PORT of HTTP, of gRPC and of metrics. ``controlled``: only these, and clients may load models."""
    (packages,) = INSTALLED.glob("lib/python*/site-packages")
    held = packages / "pytriton" / "tritonserver"
    backends = scratch / "backends"
    shutil.copytree(held / "backends", backends)
    python = packages.parent.name.removeprefix("python")
    shutil.copy(held / "python_backend_stubs" / python / "triton_python_backend_stub", backends / "python")
    http, grpc, metrics = _ports(3)
    environment = os.environ | {
        "LD_LIBRARY_PATH": f"{packages / 'nvidia_pytriton.libs'}:{held / 'lib'}",
        "PYTHONPATH": str(packages),
        "PATH": f"{INSTALLED / 'bin'}:{os.environ['PATH']}",  # the interpreter of models
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            [
                held / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backends,
                "--http-address", "127.0.0.1", "--http-port", str(http), "--grpc-port", str(grpc),
                "--metrics-port", str(metrics), "--cache-directory", held / "caches",
                f"--backend-config=python,shm-region-prefix-name=gemlet-{http}-",  # two servers take each other's else
                *(f"--load-model={name}" for name in controlled),
                f"--model-control-mode={'explicit' if controlled else 'none'}",
            ],
            env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _wait(process, f"http://127.0.0.1:{http}/v2/health/ready", scratch / "log")
            yield f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}"
        finally:
            process.terminate()
            process.wait()


def _wait(process, address, log):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"tritonserver is not ready:\n{log.read_text()}")
