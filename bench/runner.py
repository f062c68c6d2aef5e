"""What the benchmarks' scenarios have in common: programs that are always busy, their rate alone, options, errors."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from bench.machine import Client, Machine, end_on_signals
from bench.mps import MpsError
from bench.report import Report
from bench.windows import worst_window

CONFIGS: dict[str, list[str]] = {
    "100us": ["--kernel-us", "100", "--batch", "10"],
    "100us, full": ["--kernel-us", "100", "--batch", "10", "--shape", "full"],
    "100us small blocks": ["--kernel-us", "100", "--batch", "10", "--shape", "small"],
    "20us, gaps of 40us": ["--kernel-us", "20", "--batch", "50", "--gap-us", "40"],
    "100us, gaps of 50us": ["--kernel-us", "100", "--batch", "10", "--gap-us", "50"],
    "1ms": ["--kernel-us", "1000", "--batch", "1"],
    "graph of 10x100us": ["--kernel-us", "100", "--batch", "10", "--graph"],
    "default stream": ["--kernel-us", "100", "--batch", "10", "--stream", "default"],
    # Ten milliseconds at a time; the log has an entry each millisecond, so that windows are exact.
    "batches of 100x100us": ["--kernel-us", "100", "--batch", "100", "--marks", "10"],
    "batches of 100x100us, full": ["--kernel-us", "100", "--batch", "100", "--marks", "10", "--shape", "full"],
    "graph of 200x100us": ["--kernel-us", "100", "--batch", "200", "--graph"],
}
UNEVEN = 0.05  # of the mean rate, in a quarter of a second


class Bench:
    """Scenarios are methods; ``scenarios`` lists them in order."""

    name: ClassVar[str]
    scenarios: ClassVar[list[str]]
    seconds: ClassVar[float] = 5.0
    failed = False

    def __init__(self, machine: Machine, seconds: float, report: Report) -> None:
        self.machine = machine
        self.length = seconds
        self.report = report
        self.rates: dict[str, float] = {}

    def doubt(self, config: str, off: float) -> None:
        """Says so when the baseline itself was uneven: every ratio to it is as doubtful."""
        if off > UNEVEN:
            description = (
                f"{config}, alone: a quarter of a second was off by {off:.2f} from the mean: this machine is not quiet"
            )
            print(f"doubtful: {description}", flush=True)
            self.report.put("doubtful", {"scenario": config, "why": description})

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds what only this benchmark asks."""

    def chose(self, options: argparse.Namespace) -> None:
        """What was answered, before the first scenario."""

    def scenario(self, name: str) -> None:
        getattr(self, name)()

    def finish(self) -> None:
        """What there is to say at the end: a table, for example."""

    def scaled(self, args: list[str]) -> list[str]:
        """The arguments with what makes their kernel the same work in every program."""
        kernel = float(args[args.index("--kernel-us") + 1])
        shape = args[args.index("--shape") + 1] if "--shape" in args else "large"
        return [*args, *self.machine.spin(kernel, shape)]

    def work(self, config: str) -> list[str]:
        return self.scaled(["work", *CONFIGS[config]])

    def rate(self, config: str) -> float:
        """Seconds of work a second of one client that has the device to itself, without gemlet and without MPS."""
        assert not self.machine.mps
        if config not in self.rates:
            (c,) = self.machine.run([Client(self.work(config))], None, self.length)
            self.rates[config] = c.result["work_s"] / c.result["seconds"]
            self.doubt(config, worst_window(c.done, 1.0, self.rates[config], 0, self.length, window=0.25))
        return self.rates[config]


def main(bench: type[Bench], description: str) -> int:
    """Runs the scenarios that were asked for. One that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="on the simulated machine: measures no GPU")
    parser.add_argument("--seconds", type=float, default=bench.seconds, help="length of a scenario")
    parser.add_argument("--only", default="", help=f"of {','.join(bench.scenarios)}")
    parser.add_argument("--out", type=Path, help=f"directory for {bench.name}.json, written as results come")
    bench.options(parser)
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else bench.scenarios
    if unknown := [name for name in chosen if name not in bench.scenarios]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(bench.scenarios)}")
    end_on_signals()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as workdir:
        machine = Machine(simulate=options.simulate, workdir=Path(workdir))
        about = machine.describe() | {"seconds": options.seconds}
        report = Report(about, options.out / f"{bench.name}.json" if options.out else None)
        running = bench(machine, options.seconds, report)
        running.chose(options)
        for name in chosen:
            try:
                running.scenario(name)
            except MpsError as error:
                report.put("skipped", {"scenario": name, "why": str(error)})
                print(f"skipped: {name}: {error}", flush=True)
            except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                running.failed = True
                report.put("failed", {"scenario": name, "why": str(error)})
                print(f"failed: {name}: {error}", file=sys.stderr, flush=True)
        running.finish()
    return 1 if running.failed else 0
