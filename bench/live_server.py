"""`gemlet serve` and `gemlet load` as processes of a benchmark: started, asked, timed, and ended whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GEMLET = [sys.executable, "-m", "gemlet"]
READY_S = 300.0  # models to a GPU and their graphs, the slowest of all
DRAIN_S = 10.0
END_S = 60.0
LOAD_MORE_S = 90.0  # beyond its own time: processes that start, and the patience with the last replies
ASK_S = 120.0  # one answer of the server: a model that is loaded, the slowest
WORKER = "gemlet.serve.execution.worker"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server ended after SIGTERM. left: executors that outlived it."""

    code: int | None
    seconds: float
    left: int


class ServerError(RuntimeError):
    """It did not start, or does not answer."""


def write_models(
    folder: Path, slos_ms: Mapping[str, float], max_batch: int = 32, shares: Mapping[str, float] | None = None
) -> None:
    """A repository of models of the catalogue, with random weights; ``shares``: `sm` of those that have one."""
    for name, slo in slos_ms.items():
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        share = f"sm: {100 * shares[name]:g}%\n" if shares and name in shares else ""
        config = f"platform: builtin\nmax_batch: {max_batch}\nslo: {slo:g}ms\n{share}"
        (folder / name / "config.yaml").write_text(config)


def demand_file(
    slos_ms: Mapping[str, float],
    rates: Mapping[str, object],
    seconds: float,
    options: Mapping[str, object] | None = None,
    **more: object,
) -> str:
    """A file of demands: ``rates`` are numbers, or tables in TOML's words; ``options`` of the planner."""
    lines = [f'duration = "{seconds:g}s"', *(f"{key} = {json.dumps(value)}" for key, value in more.items())]
    for name, rate in rates.items():
        lines += ["", "[[model]]", f'name = "{name}"', f'slo = "{slos_ms[name]:g}ms"', f"rate = {rate}"]
    if options:
        lines += ["", "[options]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


class LiveServer:
    """A server on free ports; a context manager. Its words go to ``log``. Raises ServerError if it is not ready."""

    def __init__(self, repository: Path, log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.log_file = log
        self._command = [
            *GEMLET, "serve", str(repository), "--http-port", "0", "--grpc-port", "0", "-o", "json",
            "--drain", f"{DRAIN_S:g}", *arguments,
        ]  # fmt: skip
        self._env = {name: value for name, value in (env or os.environ).items() if name != "JOURNAL_STREAM"}
        self.ready_s = 0.0
        self.document: dict[str, Any] = {}
        self.ending: Ending | None = None

    def __enter__(self) -> LiveServer:
        began = time.monotonic()
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, env=self._env, start_new_session=True
            )
        try:
            self.document = self._first_line(began + READY_S)
            self.ready_s = time.monotonic() - began
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def http(self) -> str:
        return f"http://{self.document['http']}"

    @property
    def grpc(self) -> str:
        return f"grpc://{self.document['grpc']}"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def ask(self, method: str, path: str, seconds: float = ASK_S) -> tuple[int, Any]:
        """Status, and the body as JSON, or as text if it is not JSON. Raises ServerError."""
        connection = http.client.HTTPConnection(self.document["http"], timeout=seconds)
        try:
            connection.request(method, path)
            reply = connection.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{method} {path}: {error!r}") from None
        finally:
            connection.close()
        try:
            return reply.status, json.loads(body) if body else {}
        except ValueError:
            return reply.status, body.decode()

    def plan(self) -> dict[str, Any]:
        return self.ask("GET", "/v2/plan")[1]

    def capacity(self) -> dict[str, float]:
        """Requests/s by model that the plan in force could serve."""
        found: dict[str, float] = {}
        for gpu in self.plan()["gpus"]:
            for gpu_let in gpu["lets"]:
                for task in gpu_let["tasks"]:
                    found[task["model"]] = found.get(task["model"], 0.0) + task["capacity"]
        return found

    def restarts(self) -> float:
        lines = str(self.ask("GET", "/metrics")[1]).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("gemlet_serve_executor_restarts_total"))

    def changes(self) -> list[dict[str, Any]]:
        """What the controller did, from the log: Unix seconds and words."""
        found = []
        for line in self.log.splitlines():
            stamp, mark, message = line.partition(" INFO plan: ")
            if mark:
                at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()
                found.append({"unix_s": at, "words": message})
        return found

    def executors(self) -> list[psutil.Process]:
        return [child for child in self._children(recursive=False) if WORKER in cmdline(child)]

    def cpu(self) -> dict[str, float]:
        """Processor seconds until now of the server and of its executors that live."""
        return {
            "server": processor_seconds(psutil.Process(self.process.pid)),
            "executors": sum(processor_seconds(each) for one in self.executors() for each in (one, *children(one))),
        }

    def end(self) -> Ending:
        """Sends SIGTERM and reports the end; kills processes that do not end in time. The second time: what the first
        said."""
        if self.ending is not None:
            return self.ending
        began = time.monotonic()
        before = self._children()
        if self.process.poll() is None:
            self.process.terminate()
        code: int | None = None
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        seconds = time.monotonic() - began
        _, left = psutil.wait_procs(before, timeout=5)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.ending = Ending(code, seconds, len(left))
        return self.ending

    def _children(self, *, recursive: bool = True) -> list[psutil.Process]:
        try:
            return children(psutil.Process(self.process.pid), recursive=recursive)
        except psutil.NoSuchProcess:
            return []

    def _first_line(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ServerError(f"not ready after {READY_S:.0f} s:\n{self.log[-2000:]}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise ServerError(f"gemlet serve did not start:\n{self.log[-2000:]}")
            line += more
        return json.loads(line)


def children(process: psutil.Process, *, recursive: bool = True) -> list[psutil.Process]:
    try:
        return process.children(recursive=recursive)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def processor_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return times.user + times.system


class Load:
    """`gemlet load` in the background. ``seconds``: its own; stop() ends it early, with the results so far."""

    def __init__(self, url: str, *arguments: str, seconds: float) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  close() closes it
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.deadline = time.monotonic() + seconds + LOAD_MORE_S
        self.process = subprocess.Popen(
            [*GEMLET, "load", url, *arguments, "--duration", f"{1000 * seconds:.0f}ms", "-o", "json"],
            stdout=self._out, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # not SIGINT, which is ignored by what a shell starts in the background
            self.deadline = min(self.deadline, time.monotonic() + LOAD_MORE_S)

    def result(self) -> dict[str, Any]:
        """Its one run. Raises ServerError if it failed, or did not end in time."""
        try:
            code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ServerError("gemlet load did not end in time") from None
        finally:
            self._kill()
        self._out.seek(0)
        self._log.seek(0)
        text = self._out.read()
        if code not in {0, 130} or not text:
            raise ServerError(f"gemlet load: exit code {code}: {self._log.read().decode()[-1000:]}")
        (run,) = json.loads(text)["runs"]
        return run

    def close(self) -> None:
        """Ends it and its processes, if they are still there; what it said is gone."""
        self._kill()
        self._out.close()
        self._log.close()

    def _kill(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def background(url: str, *arguments: str, seconds: float) -> Iterator[Load]:
    load = Load(url, *arguments, seconds=seconds)
    try:
        yield load
    finally:
        load.close()


def measured(server: LiveServer, url: str, *arguments: str, seconds: float) -> dict[str, Any]:
    """One run of `gemlet load`, with the processor seconds that everybody used meanwhile, as ``cpu_s``."""
    before, ours = server.cpu(), _of_children()
    with background(url, *arguments, seconds=seconds) as load:
        run = load.result()
    after = server.cpu()
    run["cpu_s"] = {name: round(after[name] - before[name], 3) for name in after}
    run["cpu_s"]["generator"] = round(_of_children() - ours, 3)  # with its start
    return run


def _of_children() -> float:
    """Processor seconds of all ended processes of this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
