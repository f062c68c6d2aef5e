"""The rows of bench/swap.py that need PyTorch: training whose memory is mostly cache."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.machine import Client
from bench.movement import GIB, Watch
from bench.training import same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.machine import Machine, Sharing
    from bench.report import Report

PROGRAM = Path(__file__).resolve().parent / "torch_programs" / "train.py"
START_LIMIT = 180.0  # seconds: PyTorch's import and the model
EPOCH = 2.0  # seconds: the same with and without the hook, so that both change places as often


class Bench(Protocol):
    """What DeadCache asks of the benchmark it is a part of."""

    machine: Machine
    report: Report
    python: str
    length: float

    def device(self, epoch: float | None, capacity: int | None = None) -> Sharing: ...


class DeadCache:
    """Two training programs that do not fit together, with the hook for PyTorch and without."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.machine = bench.machine
        self.report = bench.report

    def measure(self) -> None:
        if self.machine.simulate:
            why = "PyTorch needs the CUDA runtime, which the simulated machine does not have"
            print(f"skipped: dead: {why}", flush=True)
            self.report.put("skipped", {"scenario": "dead", "why": why})
            return
        alone = self.program("alone", self.machine.workdir / "losses-alone")
        self.machine.run([alone], None, 3.0, start_limit=START_LIMIT)
        reserved, allocated = int(alone.result["reserved"]), int(alone.result["allocated"])
        reference = (self.machine.workdir / "losses-alone").read_text().split()
        # A quarter of what both have does not fit, contexts included.
        capacity = int(1.5 * (reserved + GIB / 2))
        unused = f"{(reserved - allocated) / GIB:.1f} of them unused between steps, capacity {capacity / GIB:.1f} GiB"
        self.report.add("PyTorch: GiB in the allocator's cache", reserved / GIB, note=unused)
        plain, _ = self.run(capacity, None)
        hooked, losses = self.run(capacity, "dead")
        # Where nothing at all moved: as good as a mebibyte an epoch.
        ratio = plain / max(hooked, 1 << 20)
        note = f"{plain / GIB:.2f} GiB an epoch without, {hooked / GIB:.3f} with"
        self.report.add("PyTorch: bytes moved without the hook / with it", ratio, ">= 5", note=note)
        identical = all(same(found, reference) for found in losses)
        self.report.add("PyTorch: losses bit-identical to those alone", float(identical), ">= 1")

    def program(self, group: str, losses: Path) -> Client:
        args = ["--losses", str(losses)]
        return Client(args, group, program=[self.bench.python, str(PROGRAM)])

    def run(self, capacity: int, what: str | None) -> tuple[float, list[list[str]]]:
        """Bytes moved an epoch, and the losses of both programs."""
        seconds = max(10.0, self.bench.length / 3)
        logs = [self.machine.workdir / f"losses-{name}" for name in "ab"]
        clients = [self.program(name, log) for name, log in zip("ab", logs, strict=True)]
        with self.hooked(what), self.bench.device(EPOCH, capacity) as sharing, Watch(sharing) as watch:
            for name in "ab":
                sharing.group(name)
            self.machine.run(clients, sharing, seconds, start_limit=START_LIMIT)
        # At the start both have waited for it: what one had unused was declared when there was no need to.
        settled = 1.5 * EPOCH
        moved = watch.after(self.machine.started_ns + int(settled * 1e9))
        return (moved.out + moved.into) / ((seconds - settled) / EPOCH), [log.read_text().split() for log in logs]

    @contextlib.contextmanager
    def hooked(self, what: str | None) -> Iterator[None]:
        """Programs get what `gemlet run` gives them for PyTorch."""
        from gemlet import paths

        before = self.machine.env
        if what:
            path = [paths.injected_dir(), *filter(None, [before.get("PYTHONPATH")])]
            self.machine.env = before | {"GEMLET_TORCH": what, "PYTHONPATH": ":".join(path)}
        try:
            yield
        finally:
            self.machine.env = before
