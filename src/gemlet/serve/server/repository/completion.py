"""What a model's config.pbtxt leaves out, or all of it: its own file tells, as it does to Triton.

An ONNX file names its inputs and outputs; a Python model may have `auto_complete_config`. Both are asked in a process
of their own (execution/triton/completing.py), once for each state of the files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from gemlet.config.text_file import MAX_BYTES, read_bytes
from gemlet.errors import ConfigError
from gemlet.serve.execution.printed import passed_on
from gemlet.serve.server.repository import triton_config

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.inference_protocol import model_config_pb2

logger = logging.getLogger(__name__)

CLASS, METHOD = re.compile(rb"\bTritonPythonModel\b"), re.compile(rb"\bdef auto_complete_config\b")
PATIENCE_S = 120.0  # for imports of large libraries
FAILED = 3  # exit code of a process that says on standard output why
MAX_KNOWN = 1000
ENDING = "the server is ending"
_known: dict[tuple[object, ...], dict[str, Any]] = {}  # what was told, by what was asked


class _Asked:
    """The processes that are asked now, which the end of a server does not wait for: a model may take its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.ended = False

    def begin(self) -> None:
        """Of a server, in a process that may have had another one."""
        self.ended = False

    def end(self) -> None:
        """Ends them; there are no more from now on."""
        with self._lock:
            self.ended = True
            for process in self._processes:
                _kill(process)

    def told(self, command: list[str], words: str, stderr: int) -> tuple[int, str]:
        """Exit code and answer. Raises TimeoutExpired.

        Both ways by a file: a pipe ends only with all that a model has started, which may have it, too.
        """
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
            given.write(words.encode())
            given.seek(0)
            process = subprocess.Popen(command, stdin=given, stdout=answer, stderr=stderr, start_new_session=True)
            with self._lock:
                self._processes.add(process)
                if self.ended:
                    _kill(process)
            try:
                status = process.wait(PATIENCE_S)
            except BaseException:
                _kill(process)
                process.wait()
                raise
            finally:
                with self._lock:
                    self._processes.discard(process)
            answer.seek(0)
            return status, answer.read().decode()


asked = _Asked()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_for_triton(path: Path) -> bool:
    """Whether a model.py is written for Triton's Python backend."""
    return bool(CLASS.search(_source(path)))


def can_tell(folder: Path) -> bool:
    """Whether a model without any configuration tells it by itself."""
    version = _version(folder)
    return version is not None and (_onnx(version) or bool(METHOD.search(_source(version / "model.py"))))


def completed(message: model_config_pb2.ModelConfig, folder: Path) -> model_config_pb2.ModelConfig:
    """The configuration with what the highest version's file adds. Raises ConfigError."""
    version = _version(folder)
    if version is None:
        return message
    backend = message.backend or message.platform
    python = version / (message.default_model_filename or "model.py")
    onnx = version / (message.default_model_filename or "model.onnx")
    if backend in {"", "python"} and METHOD.search(_source(python)) and is_for_triton(python):
        return _asked(message, "python", python, folder)
    named = triton_config.PLATFORMS.get(backend) == "onnx"
    if (named or (not backend and _onnx(version))) and onnx.is_file() and not (message.input and message.output):
        return _asked(message, "onnx", onnx, folder)
    return message


def _asked(message: model_config_pb2.ModelConfig, kind: str, path: Path, folder: Path) -> model_config_pb2.ModelConfig:
    told = json.dumps(triton_config.table(message, whole=False) | {"name": folder.name})
    status = path.stat()
    question = (kind, str(path), status.st_size, status.st_mtime_ns, told)
    if question not in _known:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[question] = _ask(kind, path, folder, told)
        logger.info("%s: what its configuration leaves out comes from %s", folder.name, path.name)
    return triton_config.message_from(_known[question], path)


def _ask(kind: str, path: Path, folder: Path, told: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "gemlet.serve.execution.triton.completing", kind, str(path), str(folder)]
    try:
        with passed_on(folder.name) as stderr:
            status, answered = asked.told(command, told, stderr)
    except subprocess.TimeoutExpired:
        message = f"its file did not tell the configuration within {PATIENCE_S:g} s"
        raise ConfigError(message, path=str(path), hint="write inputs and outputs into config.pbtxt") from None
    if asked.ended:
        raise ConfigError(ENDING, path=str(path))
    if status:
        why = answered.strip() if status == FAILED else f"the process ended with status {status}"
        hint = "write inputs and outputs into config.pbtxt"
        raise ConfigError(f"its configuration cannot be told from its file: {why}", path=str(path), hint=hint)
    try:
        answer: dict[str, Any] = json.loads(answered)
    except ValueError:
        raise ConfigError("its file ended the process that asked for its configuration", path=str(path)) from None
    return answer


def _version(folder: Path) -> Path | None:
    there = [path for path in folder.iterdir() if re.fullmatch("0*[1-9][0-9]*", path.name) and path.is_dir()]
    return max(there, key=lambda path: int(path.name), default=None)


def _onnx(version: Path) -> bool:
    return (version / "model.onnx").is_file() and not (version / "model.py").is_file()


def _source(path: Path) -> bytes:
    """Raises ConfigError for what is too large to be one."""
    return read_bytes(path, MAX_BYTES) if path.is_file() else b""
