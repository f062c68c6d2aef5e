"""The programs of one window: started once, kept for the next windows, ended with all they have started.

Loading a framework and a model takes longer than a window, so a program that is ready is kept until no row needs it:
those of each way are there all the time, and only those of the window at hand work.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.cores import keep_to, split
from bench.llm.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

READY_S = 150.0  # until a program has loaded its framework and its model, with others at the same time
FAREWELL_S = 5.0  # until one that has been asked to has ended
TAIL = 1500  # characters of stderr that an error shows


@dataclass
class Program:
    """A process that works on command. ``log`` takes its stderr; ``units``: where bench/client writes its."""

    name: str
    args: Sequence[str]
    env: Mapping[str, str]
    log: Path
    units: Path | None = None
    process: subprocess.Popen[str] = field(init=False)
    lines: queue.Queue[str | None] = field(init=False, default_factory=queue.Queue)
    seconds: float = 0.0
    is_ready: bool = False

    def start(self) -> None:
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                self.args, env=dict(self.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            for line in self.process.stdout:
                self.lines.put(line)
        self.lines.put(None)

    def wait_ready(self, deadline: float) -> None:
        """Raises RuntimeError."""
        if not self.is_ready:
            line = self._next(deadline, "is not ready")
            if line.strip() != "ready" and "ready" not in json.loads(line):
                raise RuntimeError(f"{self.name} said {line.strip()!r} in place of being ready")
            self.is_ready = True

    def order(self, start_ns: int, seconds: float, parameters: Mapping[str, object]) -> None:
        """Raises RuntimeError if it has ended."""
        self.seconds = seconds
        line = str(start_ns) if self.units else json.dumps({"start": start_ns, "seconds": seconds, **parameters})
        assert self.process.stdin
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            raise RuntimeError(f"{self.name} has ended before its start{self.last_lines()}") from None

    def collect(self, deadline: float) -> Work:
        """What it did in the window. Raises RuntimeError."""
        lines = [self._next(deadline, "has not reported")]
        if self.units:
            return client_work(self.units.read_text(), self.seconds)
        while "end" not in json.loads(lines[-1]):
            lines.append(self._next(deadline, "has not reported all"))
        return Work.read(lines, self.seconds)

    def _next(self, deadline: float, what: str) -> str:
        try:
            line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise RuntimeError(f"{self.name} {what} in time{self.last_lines()}") from None
        if line is None:
            raise RuntimeError(f"{self.name} {what}: exit code {self.process.wait(FAREWELL_S)}{self.last_lines()}")
        return line

    def last_lines(self) -> str:
        text = self.log.read_text(errors="replace").strip()[-TAIL:] if self.log.exists() else ""
        return f": {text}" if text else ""

    def alive(self) -> bool:
        return self.process.poll() is None

    def farewell(self) -> None:
        """Asks it to end: the end of its input."""
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def close(self, deadline: float) -> None:
        """Waits for it to end, then ends it, and whatever it has started, by signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def client_work(text: str, seconds: float) -> Work:
    """From the log of bench/client: ns since the start, ns of work complete."""
    rows = [line.split() for line in text.splitlines()]
    return Work(seconds, [int(row[0]) / 1e9 for row in rows], [float(row[1]) / 1e9 for row in rows])


class Pool:
    """All programs that are there, by a key that says whose they are."""

    def __init__(self) -> None:
        self.programs: dict[tuple[str, str], Program] = {}

    def ensure(self, wanted: Mapping[tuple[str, str], Program], limit: float = READY_S) -> None:
        """Starts the missing ones, together, and returns when all are ready. Raises RuntimeError."""
        fresh = {key: program for key, program in wanted.items() if not self.has(key)}
        for key, program in fresh.items():
            self.programs[key] = program
            program.start()
        deadline = time.monotonic() + limit
        problems = []
        for key in fresh:
            try:
                self.programs[key].wait_ready(deadline)
            except (RuntimeError, ValueError) as error:
                problems.append(str(error))
                self.release([key])
        if problems:
            raise RuntimeError("; ".join(problems))

    def has(self, key: tuple[str, str]) -> bool:
        return key in self.programs and self.programs[key].alive()

    def window(
        self,
        keys: Sequence[tuple[str, str]],
        seconds: float,
        parameters: Sequence[Mapping[str, object]],
        overtime: float,
        during: Sequence[tuple[float, Callable[[], object]]] = (),
    ) -> list[Work]:
        """All of ``keys`` work for ``seconds``, from the same instant on, each on cores of its own if there are enough.

        Raises RuntimeError; then they are ended.

        ``during``: functions to call, by seconds after the start.
        """
        programs = [self.programs[key] for key in keys]
        for program, cpus in zip(programs, split(len(programs)), strict=False):
            keep_to(program.process.pid, cpus)
        try:
            start = time.monotonic_ns() + 50_000_000
            for program, given in zip(programs, parameters, strict=True):
                program.order(start, seconds, given)
            for at, do in during:
                time.sleep(max(0.0, start / 1e9 + at - time.monotonic()))
                do()
            deadline = start / 1e9 + seconds + overtime
            return [program.collect(deadline) for program in programs]
        except (RuntimeError, ValueError, OSError) as error:
            self.release(keys, at_once=True)
            raise RuntimeError(str(error)) from error

    def release(self, keys: Sequence[tuple[str, str]], *, at_once: bool = False) -> None:
        """Ends them."""
        ending = [program for key in keys if (program := self.programs.pop(key, None))]
        for program in ending:
            program.farewell()
        deadline = time.monotonic() + (0.0 if at_once else FAREWELL_S)
        for program in ending:
            program.close(deadline)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.release(list(self.programs))
