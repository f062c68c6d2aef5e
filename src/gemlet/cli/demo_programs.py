"""Starts the demo's programs in groups of their own and reads what they report."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.cli import environment
from gemlet.cli.demo_measurement import Trace
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gemlet.daemon.connection import Connection

PROGRAM = Path(__file__).with_name("demo_client.py")
ALONE = "demo-alone"
CALIBRATION_SECONDS = 60.0  # a driver's first start may take long
END_SECONDS = 10.0


class Programs:
    """Programs of one daemon. ``traces``: by group, the work that the programs of the last run completed."""

    def __init__(self, daemon: Connection, kernel_us: int) -> None:
        self._daemon = daemon
        self._kernel_us = kernel_us
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._partial: dict[str, bytes] = {}
        self._scale: int | None = None
        self.traces: dict[str, Trace] = {}

    def calibrate(self) -> None:
        """Measures the kernel once, for all programs. Nothing else may use the device. Raises GemletError."""
        process = self._start(ALONE, 0.0, "calibrate", self._kernel_us)
        try:
            output = self._end(ALONE, process, CALIBRATION_SECONDS)
        finally:
            process.kill()
            process.communicate()
        self._scale = int(output)

    @contextlib.contextmanager
    def running(self, minima: Mapping[str, float], seconds: float) -> Iterator[None]:
        """One program for each group of ``minima`` while entered. Raises GemletError if one of them fails."""
        assert self._scale is not None, "calibrate first"
        self.traces = {group: Trace() for group in minima}
        try:
            for group, minimum in minima.items():
                process = self._start(group, minimum, "work", self._kernel_us, self._scale, seconds)
                assert process.stdout is not None
                self._processes[group] = process
                self._partial[group] = b""
                self._selector.register(process.stdout, selectors.EVENT_READ, group)
            yield
            for group, process in self._processes.items():
                self._end(group, process, END_SECONDS)
        finally:
            for process in self._processes.values():
                process.kill()
                process.communicate()
            self._processes.clear()

    def pids(self) -> list[int]:
        """Of the programs that run."""
        return [process.pid for process in self._processes.values()]

    def alive(self) -> bool:
        """Whether any program still reports."""
        return bool(self._selector.get_map())

    def read(self, *, timeout: float) -> None:
        """Takes the reports that come within ``timeout`` seconds."""
        for key, _ in self._selector.select(timeout):
            group: str = key.data
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            *lines, self._partial[group] = (self._partial.get(group, b"") + data).split(b"\n")
            for line in lines:
                time_ns, count = line.split()
                self.traces[group].add(int(time_ns), int(count))

    def _start(self, group: str, minimum: float, *arguments: object) -> subprocess.Popen[bytes]:
        joined = self._daemon.call("join", group=group, command=group, limits={"min": minimum, "max": 1.0})
        environment.check_version(joined, simulated=joined["simulated"])
        membership = environment.Membership(
            group=joined["group"], socket=joined["socket"], strict=True, machine=joined["machine"]
        )
        return subprocess.Popen(
            [sys.executable, "-S", "-E", str(PROGRAM), *map(str, arguments)],
            env=environment.for_program(membership, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def _end(group: str, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise GemletError(f"the program of group {group} does not end", hint="see `gemlet doctor`") from None
        if process.returncode != 0:
            last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            why = last[0].removeprefix("error: ")
            raise GemletError(f"the program of group {group} failed: {why}", hint="see `gemlet doctor`")
        return output
