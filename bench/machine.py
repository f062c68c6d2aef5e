"""What every benchmark needs: the client built, a server with groups, programs run under it, work counted.

Shares are counted in completed work, never in what the arbiter believes: each client logs when each of its batches was
complete, and a share is work done in a window over what the device does for one client alone in that time.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.mps import ROOT, ControlDaemon
from bench.windows import Completed
from gemlet import paths
from gemlet.config.quantities import exact_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_LIMIT = 60.0  # seconds until a program is ready: the first one under MPS waits for MPS's server
END_LIMIT = 60.0  # seconds beyond its own time until a program has ended
LEAD_NS = 50_000_000  # from the last "ready" to the common start


@dataclass
class Client:
    """One program of a scenario. ``group`` None runs it without the hook."""

    args: list[str]
    group: str | None = None
    begin: float = 0.0  # seconds after the scenario's start
    program: list[str] | None = None  # in place of bench/client, whose options --wait, --seconds and --file it takes
    result: dict[str, Any] = field(default_factory=dict)
    done: Completed = field(default_factory=Completed)
    latencies_us: list[float] = field(default_factory=list)  # of what had a time to begin at, in order of completion
    rows: list[tuple[int, ...]] = field(default_factory=list)  # its log as it is

    def work_between(self, a: float, b: float) -> float:
        """Seconds of work completed in [a, b) of the scenario's time."""
        return self.done.between(a, b)

    def read(self, log: Path) -> None:
        """Takes the log of ``bench/client``; its times count from when the client began."""
        self.rows = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        self.done = Completed([(row[0] / 1e9 + self.begin, row[1] / 1e9) for row in self.rows])
        self.latencies_us = [row[2] / 1000 for row in self.rows if len(row) > 2]


@dataclass
class Happening:
    """Something to do while clients run."""

    at: float  # seconds after the scenario's start
    do: Callable[[], object]
    happened: float = 0.0  # ... when it was done


class Machine:
    """The GPU, or the simulated machine, with or without gemlet in front."""

    def __init__(self, *, simulate: bool, workdir: Path) -> None:
        self.simulate = simulate
        self.workdir = workdir
        self.lib = Path(os.environ.get("GEMLET_LIB_DIR", ROOT / "src/gemlet/_lib"))
        self.env = dict(os.environ)
        # Nobody else's MPS: without a control daemon in its pipe directory a program runs without MPS.
        self.env["CUDA_MPS_PIPE_DIRECTORY"] = str(workdir / "no-mps")
        self.env.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)
        self.mps = False
        self.started_ns = 0  # CLOCK_MONOTONIC, of the last run
        if simulate:
            self.env["LD_LIBRARY_PATH"] = f"{self.lib / 'sim'}:{self.env.get('LD_LIBRARY_PATH', '')}"
            self.env["GEMLET_SIM_DIR"] = str(workdir / "machine")
        self._spins: dict[tuple[float, str], list[str]] = {}

    @cached_property
    def client(self) -> Path:
        """``bench/client``, compiled when it is first needed."""
        include = next(
            p
            for p in [
                *(Path(s) / "nvidia/cu13/include" for s in sys.path),
                Path("/usr/local/cuda/include"),
                *Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13/include"),
            ]
            if (p / "cuda.h").exists()
        )
        # Any library of that name will do to link: the loader finds the real or the simulated driver.
        library = next(
            p
            for p in (
                self.lib / "sim/libcuda.so.1",
                Path("/usr/local/cuda/lib64/stubs/libcuda.so"),
                *driver_libraries(),
            )
            if p.exists()
        )
        ptx = f'-DSPIN_PTX="{ROOT / "src/gemlet/cli/spin.ptx"}"'
        sources = sorted((ROOT / "bench/client").glob("*.cpp"))
        client = self.workdir / "client"
        subprocess.run(
            ["g++", "-std=c++20", "-O2", "-pthread", f"-isystem{include}", ptx, *sources, "-o", client, library],
            check=True,
        )
        return client

    def spin(self, kernel_us: float, shape: str = "large") -> list[str]:
        """The options that make every program's kernel the same work: measured alone, without MPS, and once."""
        key = (kernel_us, shape)
        if key not in self._spins:
            assert not self.mps
            out = self.output(["calibrate", "--kernel-us", str(kernel_us), "--shape", shape], self.env)
            self._spins[key] = ["--scale", str(int(out["scale"])), "--blocks", str(int(out["blocks"]))]
        return list(self._spins[key])

    def scale(self, kernel_us: float, shape: str = "large") -> int:
        """Iterations per nanosecond of the spin kernel, in 65536ths."""
        return int(self.spin(kernel_us, shape)[1])

    def output(self, args: list[str], env: dict[str, str], limit: float = 60) -> dict[str, float]:
        done = subprocess.run([self.client, *args], env=env, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"client {args}: {done.returncode}: {done.stderr}")
        if done.stderr.strip():
            print(done.stderr.strip(), file=sys.stderr)
        return json.loads(done.stdout)

    def once(self, args: list[str], sharing: Sharing | None = None, group: str = "alone") -> dict[str, float]:
        return self.output(args, sharing.env(group) if sharing else self.env)

    def run(
        self,
        clients: list[Client],
        sharing: Sharing | None,
        seconds: float,
        happenings: Sequence[Happening] = (),
        start_limit: float = START_LIMIT,
    ) -> list[Client]:
        """Runs all at once; their time 0 is the same instant, after every one has started up.

        Raises RuntimeError when one fails, is not ready in time or does not end; none is left behind.
        """
        with contextlib.ExitStack() as stack:
            running = []
            for i, c in enumerate(clients):
                log = self.workdir / f"log-{i}"
                log.unlink(missing_ok=True)
                args = [*c.args, "--wait", "--file", str(log)]
                if "--seconds" not in args:
                    args += ["--seconds", str(seconds - c.begin)]
                env = sharing.env(c.group) if sharing and c.group else self.env
                running.append((c, log, stack.enter_context(program([*(c.program or [str(self.client)]), *args], env))))
            starts = [(process, c.begin) for c, _, process in running]
            self.started_ns = begin_together(starts, happenings, start_limit)
            for c, log, process in running:
                c.result = json.loads(last_lines(process, seconds + END_LIMIT).splitlines()[-1])
                if log.exists():
                    c.read(log)
                    log.unlink()
        return clients

    @contextlib.contextmanager
    def under_mps(self) -> Iterator[None]:
        """Programs started within run under an MPS control daemon of their own. Raises MpsError."""
        before = self.env
        with ControlDaemon(before, self.lib / "sim" if self.simulate else None) as daemon:
            self.env, self.mps = daemon.env, True
            try:
                self.once(["launch", "--count", "1"])  # the first program starts MPS's server, which takes seconds
                yield
            finally:
                self.env, self.mps = before, False

    def describe(self) -> dict[str, str | bool]:
        name, driver = ("simulated H200", "simulated") if self.simulate else ("unknown", "unknown")
        if not self.simulate and shutil.which("nvidia-smi"):
            out = subprocess.run(
                ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                capture_output=True, text=True, check=False,
            ).stdout.splitlines()  # fmt: skip
            if out:
                name, driver = (s.strip() for s in out[0].split(",")[:2])
        found = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        # Where the tree was copied, git may know nothing or an older state.
        commit = os.environ.get("GEMLET_COMMIT") or found or "unknown"
        return {
            "device": name, "driver": driver, "simulated": self.simulate, "commit": commit,
            "kernel": platform.release(), "cpus": str(os.cpu_count()), "load": f"{os.getloadavg()[0]:.1f}",
        }  # fmt: skip


@contextlib.contextmanager
def program(args: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program that waits for its start as ``bench/client`` does with --wait. Killed at the end if it still runs."""
    process = subprocess.Popen(args, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


def begin_together(
    programs: Sequence[tuple[subprocess.Popen[str], float]],
    happenings: Sequence[Happening] = (),
    limit: float = START_LIMIT,
) -> int:
    """Waits until all are ready, gives each its start (seconds after the common one), then lets happenings happen.

    Gives the common start, in ns of CLOCK_MONOTONIC. Raises RuntimeError when a program ends, or is not ready within
    ``limit`` seconds.
    """
    deadline = time.monotonic() + limit
    for process, _ in programs:
        assert process.stdin
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RuntimeError(f"{process.args}: not ready after {limit:.0f} s")
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{process.args}: ended before it was ready, exit code {process.wait(END_LIMIT)}")
    start = time.monotonic_ns() + LEAD_NS
    for process, begin in programs:
        assert process.stdin
        process.stdin.write(f"{start + int(begin * 1e9)}\n")
        process.stdin.flush()
    for happening in sorted(happenings, key=lambda h: h.at):
        time.sleep(max(0.0, start / 1e9 + happening.at - time.monotonic()))
        happening.do()
        happening.happened = (time.monotonic_ns() - start) / 1e9
    return start


def last_lines(process: subprocess.Popen[str], limit: float) -> str:
    """What it still says until it ends. Raises RuntimeError if it fails or does not end within ``limit`` seconds."""
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{process.args}: still runs after {limit:.0f} s") from None
    if process.returncode != 0:
        raise RuntimeError(f"{process.args}: exit code {process.returncode}")
    return out


def end_on_signals() -> None:
    """SIGTERM and SIGHUP end this program as Ctrl-C does: what it has started is stopped first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))


class Sharing:
    """gemlet's server in this process, with groups."""

    def __init__(self, machine: Machine, policy: str = "fair", **parameters: int | float) -> None:
        from gemlet import _native

        self.machine = machine
        self.fractions: dict[str, float] = {}
        self.server = _native.Server(policy, **parameters)
        self.dir = Path(tempfile.mkdtemp(dir=machine.workdir))
        self.server.listen(str(self.dir / "s"))
        self.server.start()

    def group(self, name: str, **limits: object) -> None:
        """Makes the group, or changes it while its clients run."""
        self.server.set_group(name, **limits)
        self.fractions[name] = float(str(limits.get("sm", 1.0)))

    def env(self, group: str) -> dict[str, str]:
        env = dict(self.machine.env)
        # What is preloaded into this process, such as a sanitizer's runtime, is into its programs, too.
        env["LD_PRELOAD"] = paths.prepended(str(self.machine.lib / paths.HOOK_LIBRARY), env.get("LD_PRELOAD", ""))
        env["GEMLET_SOCKET"] = str(self.dir / "s")
        env["GEMLET_GROUP"] = group
        if self.machine.mps and self.fractions.get(group, 1.0) < 1:
            # What `gemlet run` sets: MPS reads it when the context is made.
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = exact_percent(self.fractions[group])
        return env

    def used(self) -> dict[str, float]:
        """Seconds charged so far, by group."""
        return {g["name"]: g["used_ns"] / 1e9 for d in self.server.snapshot()["devices"] for g in d["groups"]}

    def trace(self) -> list[tuple[int, str, int, str, int]]:
        """(time ns, group, client, what, value) of every step that the server still knows, oldest first."""
        groups = {entry["client"]: entry["group"] for entry in self.server.traced()}
        steps, _, _ = self.server.trace(0, 10_000_000)
        return [(at, groups[client], client, what, value) for at, client, what, value in steps if client in groups]

    def found(self) -> dict[str, str]:
        """What was found out about each group: whether it shares the device, and its speed against alone."""
        return {
            group["name"]: group["why"] + ("" if group["speed"] is None else f", at {group['speed']:.2f}")
            for device in self.server.snapshot()["devices"]
            for group in device["groups"]
        }

    def close(self) -> None:
        self.server.stop()

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def driver_libraries() -> list[Path]:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return [Path(line.split("=> ")[1]) for line in listed.splitlines() if "libcuda.so.1" in line and "=> " in line]
