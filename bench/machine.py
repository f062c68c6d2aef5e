"""What every benchmark needs: the client built, a server with groups, programs run under it, work counted.

Shares are counted in completed work, never in what the arbiter believes: each client logs when each of its batches was
complete, and a share is work done in a window over what the device does for one client alone in that time.
"""

from __future__ import annotations

import bisect
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, os.environ.get("GEMLET_PYTHON", str(ROOT / "src")))


@dataclass
class Client:
    """One program of a scenario. ``group`` None runs it without the hook."""

    args: list[str]
    group: str | None = None
    begin: float = 0.0  # seconds after the scenario's start
    result: dict[str, float] = field(default_factory=dict)
    done: list[tuple[float, float]] = field(default_factory=list)  # (seconds since its start, seconds of work so far)

    def work_between(self, a: float, b: float) -> float:
        """Seconds of work completed in [a, b) of the scenario's time."""

        def upto(t: float) -> float:
            i = bisect.bisect_right(self.done, (t - self.begin, float("inf")))
            return self.done[i - 1][1] if i else 0.0

        return upto(b) - upto(a)


class Machine:
    """The GPU, or the simulated machine, with or without gemlet in front."""

    def __init__(self, *, simulate: bool, workdir: Path) -> None:
        self.simulate = simulate
        self.workdir = workdir
        self.lib = Path(os.environ.get("GEMLET_LIB_DIR", ROOT / "src/gemlet/_lib"))
        self.env = dict(os.environ)
        if simulate:
            self.env["LD_LIBRARY_PATH"] = f"{self.lib / 'sim'}:{self.env.get('LD_LIBRARY_PATH', '')}"
            self.env["GEMLET_SIM_DIR"] = str(workdir / "machine")
        self.client = workdir / "client"
        self._build()
        self._scales: dict[tuple[float, str], int] = {}

    def _build(self) -> None:
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
        subprocess.run(
            ["g++", "-std=c++20", "-O2", f"-isystem{include}", str(ROOT / "bench/client/client.cpp"),
             "-o", str(self.client), str(library)],
            check=True,
        )  # fmt: skip

    def scale(self, kernel_us: float, shape: str) -> int:
        """Iterations per nanosecond of the spin kernel, measured alone and once."""
        key = (kernel_us, shape)
        if key not in self._scales:
            out = self.output(["calibrate", "--kernel-us", str(kernel_us), "--shape", shape], self.env)
            self._scales[key] = int(out["scale"])
        return self._scales[key]

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
        self, clients: list[Client], sharing: Sharing | None, seconds: float, *, lead: float | None = None
    ) -> list[Client]:
        """Runs all at once; their time 0 is the same instant, ``lead`` seconds from now: all have started up then."""
        if lead is None:
            lead = 2.5 if self.simulate else 1.5
        start = time.monotonic_ns() + int(lead * 1e9)
        running = []
        for i, c in enumerate(clients):
            log = self.workdir / f"log-{i}"
            at = start + int(c.begin * 1e9)
            args = [*c.args, "--start", str(at), "--file", str(log)]
            if "--seconds" not in args:
                args += ["--seconds", str(seconds - c.begin)]
            env = sharing.env(c.group) if sharing and c.group else self.env
            running.append((c, log, subprocess.Popen([self.client, *args], env=env, stdout=subprocess.PIPE, text=True)))
        for c, log, process in running:
            out, _ = process.communicate(timeout=seconds + 60)
            if process.returncode != 0:
                raise RuntimeError(f"client {c.args}: {process.returncode}")
            c.result = json.loads(out)
            if log.exists():
                rows = (line.split() for line in log.read_text().splitlines())
                c.done = [(int(a) / 1e9, float(b) / 1e9) for a, b in rows]
                log.unlink()
        return clients

    def describe(self) -> dict[str, str]:
        name, driver = "simulated H200", "simulated"
        if not self.simulate and shutil.which("nvidia-smi"):
            out = subprocess.run(
                ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                capture_output=True, text=True, check=False,
            ).stdout.splitlines()  # fmt: skip
            if out:
                name, driver = (s.strip() for s in out[0].split(",")[:2])
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        return {"device": name, "driver": driver, "commit": commit or "unknown", "kernel": platform.release()}


class Sharing:
    """gemlet's server in this process, with groups."""

    def __init__(self, machine: Machine, policy: str = "fair", **parameters: int | float) -> None:
        from gemlet import _native

        self.machine = machine
        self.server = _native.Server(policy, **parameters)
        self.dir = Path(tempfile.mkdtemp(dir=machine.workdir))
        self.server.listen(str(self.dir / "s"))
        self.server.start()

    def group(self, name: str, **limits: object) -> None:
        self.server.set_group(name, **limits)

    def env(self, group: str) -> dict[str, str]:
        env = dict(self.machine.env)
        env["LD_PRELOAD"] = str(self.machine.lib / "libgemhook.so.1")
        env["GEMLET_SOCKET"] = str(self.dir / "s")
        env["GEMLET_GROUP"] = group
        return env

    def used(self) -> dict[str, float]:
        """Seconds charged so far, by group."""
        return {g["name"]: g["used_ns"] / 1e9 for d in self.server.snapshot()["devices"] for g in d["groups"]}

    def close(self) -> None:
        self.server.stop()

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def driver_libraries() -> list[Path]:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return [Path(line.split("=> ")[1]) for line in listed.splitlines() if "libcuda.so.1" in line and "=> " in line]


def worst_window(
    client: Client, promise: float, rate: float, begin: float, end: float, window: float = 1.0, step: float = 0.05
) -> float:
    """Largest distance from the promise over all windows in [begin, end]: share of device time, 0..1."""
    worst, t = 0.0, begin
    while t + window <= end + 1e-9:
        worst = max(worst, abs(client.work_between(t, t + window) / (window * rate) - promise))
        t += step
    return worst
