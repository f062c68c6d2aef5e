"""`gemlet serve` as a process of its own, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "gemlet.cli.main", "serve"]


class Serving:
    def __init__(self, process, document, log):
        self.process = process
        self.http = document["http"]
        self.grpc = document["grpc"]
        self.document = document
        self._log = log

    @property
    def log(self):
        return self._log.read_text()


@contextmanager
def serving(repository, log, *arguments):
    """A server of that repository on free ports; ended, and its exit code checked, at the end."""
    with log.open("w") as words:
        process = subprocess.Popen(
            [*COMMAND, str(repository), "--http-port", "0", "--grpc-port", "0", "-o", "json", *arguments],
            stdout=subprocess.PIPE, stderr=words, text=True,
        )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line, f"the server did not start: {log.read_text()}"
        yield Serving(process, json.loads(line), log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()


def write_model(repository, name, config, code=None):
    folder = Path(repository, name)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config)
    if code is not None:
        (folder / "1" / "model.py").write_text(code)
    return folder
