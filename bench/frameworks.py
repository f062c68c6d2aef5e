"""PyTorch, JAX, CuPy and Triton, unmodified, under the hook: same numbers out, work gated, memory held to the limit.

python -m bench.frameworks [--only NAME,...]     on a GPU; prints one line a check, exit code 1 if one failed

Each program runs beside one that is always busy, and once more where the two have more memory than the device may
hold, so that it moves. Each way to allocate runs in a group with a limit, and NVML says what its process really has.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.framework_programs import ALLOCATORS, BALLAST, PROGRAMS, REFUSED_WHERE_MEMORY_MOVES
from bench.llm.environments import own_daemon
from bench.machine import Machine, Sharing

if TYPE_CHECKING:
    from collections.abc import Callable

    Report = Callable[[str, bool, str], None]

GIB = 1 << 30
LIMIT = 4 * GIB
CAPACITY, NEIGHBOUR = 6 * GIB, 5 * GIB  # of a device whose memory moves, and what the other program has of it
SHORT = {"epoch_min": 200_000_000, "max_wait": 500_000_000}  # programs of a few seconds are to be moved some times
NVML = """
import torch, pynvml, os, json
x = torch.randn(4096, 4096, device="cuda"); y = x @ x
xs = [torch.empty(n * 1000003, dtype=torch.uint8, device="cuda") for n in (1, 3, 30)]
torch.cuda.synchronize()
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
print([p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()][0])
input()
"""


class Frameworks:
    def __init__(self, machine: Machine, report: Report) -> None:
        self.machine = machine
        self.report = report

    def run(self, code: str, env: dict[str, str]) -> tuple[str, str]:
        # A file, because a child that multiprocessing starts reads its parent's program again.
        program = Path(self.machine.workdir) / "program.py"
        program.write_text(code)
        done = subprocess.run(
            [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=150, check=False
        )
        if done.returncode:
            return f"exit {done.returncode}", done.stderr
        return done.stdout.strip(), done.stderr.strip()

    def beside(self, sharing: Sharing, code: str, *more: str) -> tuple[str, str, float, int]:
        """Its output, what it said, seconds charged; bytes that left of the other program, which is always busy."""
        sharing.group("other", min=0.5)
        sharing.group("frameworks")
        busy = ["work", "--kernel-us", "100", "--scale", str(self.machine.scale(100, "large")), "--seconds", "100"]
        other = subprocess.Popen(
            [self.machine.client, *busy, *more], env=sharing.env("other"), stdout=subprocess.DEVNULL
        )
        try:
            hooked, log = self.run(code, sharing.env("frameworks"))
            clients = [c for d in sharing.server.snapshot()["devices"] for g in d["groups"] for c in g["clients"]]
            moved = sum((c["movable"] or {}).get("moved_out", 0) for c in clients)
            return hooked, log, sharing.used().get("frameworks", 0.0), moved
        finally:
            other.kill()
            other.wait()

    def same_numbers(self, name: str, code: str) -> None:
        native, log = self.run(code, self.machine.env)
        if native.startswith("exit"):
            self.report(name, True, f"not run: it fails without the hook too: {log.strip().splitlines()[-1:]}")
            return
        with Sharing(self.machine) as sharing:
            hooked, log, used, _ = self.beside(sharing, code)
        self.report(
            name, hooked == native and used > 0, f"{hooked} (native {native}), charged {used:.3f} s {log[-300:]}"
        )
        with Sharing(self.machine, "fair", **SHORT) as sharing:
            device = bytes.fromhex(str(self.machine.output(["uuid"], self.machine.env)["uuid"]))
            sharing.server.add_device(device, 0, context_estimate=1)
            sharing.server.set_capacity(device, CAPACITY)
            moves = ["--memory-mib", str(NEIGHBOUR >> 20), "--rewrite-mib", "16"]
            ballast = BALLAST[re.split("[ ,]", name)[0]]
            hooked, log, used, moved = self.beside(sharing, code.replace("# ballast", ballast), *moves)
        text = f"{hooked}, charged {used:.3f} s, {moved / GIB:.1f} GiB moved {log[-300:]}"
        refused = REFUSED_WHERE_MEMORY_MOVES.get(name)
        good = refused in log if refused else hooked == native and moved > GIB
        self.report("  ... where memory moves", good, text)

    def limited(self, name: str, code: str) -> None:
        """The device that it sees is as large as the limit, it is refused what is beyond, and NVML says so too.

        NVML does not count managed memory.
        """
        program = Path(self.machine.workdir) / "program.py"
        program.write_text(code)
        governed = [sys.executable, "-m", "gemlet", "run", "--group", "small", "--memory", str(LIMIT), "--"]
        with own_daemon(self.machine.env, simulate=False) as env:
            # How large a context is the daemon knows once there was one.
            work = ["work", "--kernel-us", "100", "--scale", str(self.machine.scale(100, "large")), "--seconds", "2"]
            subprocess.run([*governed, self.machine.client, *work], env=env, capture_output=True, check=False)
            p = subprocess.Popen(
                [*governed, sys.executable, str(program)], env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert p.stdout
            seen = dict(line.split() for line in (p.stdout.readline(), p.stdout.readline()) if line.strip())
            nvml = used_on_device() if seen else 0
            _, log = p.communicate("\n", timeout=60)
        held, total = int(seen.get("held", 0)), int(seen.get("total", 0))
        good = LIMIT // 2 < held <= LIMIT and nvml <= LIMIT and total <= LIMIT
        text = f"{held / GIB:.2f} GiB held, {nvml / GIB:.3f} by NVML, of {total / GIB:.2f} that it sees: {log[-300:]!r}"
        self.report(f"limit of 4 GiB, {name}", good, text)

    def ledger(self) -> None:
        with Sharing(self.machine) as sharing:
            sharing.group("truth")
            p = subprocess.Popen(
                [sys.executable, "-c", NVML],
                env=sharing.env("truth"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert p.stdout
            nvml = int(p.stdout.readline())
            device = sharing.server.snapshot()["devices"][0]
            client = device["groups"][0]["clients"][0]
            sharing.server.set_memory_of_processes(device["uuid"], [(client["pid"], nvml, None)])
            mine = sharing.server.snapshot()["devices"][0]["groups"][0]
            text = f"{nvml} by NVML: {client['memory']} in the ledger + {mine['untracked']} beyond it"
            self.report("ledger = NVML", mine["memory_used"] == nvml, text)
            p.communicate("\n")


def used_on_device() -> int:
    """Bytes that the driver says all processes have on the first device."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return sum(p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of programs, or allocators, parts of them")
    parts = parser.parse_args().only.split(",")
    failed = 0

    def report(name: str, good: bool, text: str) -> None:
        nonlocal failed
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name:<44} {text}", flush=True)

    with tempfile.TemporaryDirectory() as workdir:
        frameworks = Frameworks(Machine(simulate=False, workdir=Path(workdir)), report)
        for name, code in PROGRAMS.items():
            if any(part in name for part in parts):
                frameworks.same_numbers(name, code)
        for name, code in ALLOCATORS.items():
            if any(part in f"limit {name}" for part in parts):
                frameworks.limited(name, code)
        if any(part in "ledger" for part in parts):
            frameworks.ledger()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
