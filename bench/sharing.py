"""The numbers of README: what sharing costs, how exact shares are, how fast they hold. Prints a table, writes JSON.

    python bench/sharing.py [--simulate] [--seconds 5] [--only NAME,...] [--out DIR]

Every number is a ratio within one run of this script; the unmanaged baseline (the driver's own time slicing) is run
beside. On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from typing import TYPE_CHECKING

from machine import Client, Machine, Sharing, worst_window

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, object]

CONFIGS: dict[str, list[str]] = {
    "100us": ["--kernel-us", "100", "--batch", "10"],
    "100us small blocks": ["--kernel-us", "100", "--batch", "10", "--shape", "small"],
    "1ms": ["--kernel-us", "1000", "--batch", "1"],
    "graph of 10x100us": ["--kernel-us", "100", "--batch", "10", "--graph"],
    "default stream": ["--kernel-us", "100", "--batch", "10", "--stream", "default"],
}


class Bench:
    def __init__(self, machine: Machine, seconds: float) -> None:
        self.machine = machine
        self.seconds = seconds
        self.rows: list[Row] = []
        self.rates: dict[str, float] = {}

    def add(self, what: str, value: float, target: str, *, note: str = "") -> None:
        self.rows.append({"what": what, "value": round(value, 4), "target": target, "note": note})
        print(f"{what:<66} {value:9.4f}   {target:<10} {note}", flush=True)

    def work(self, config: str) -> list[str]:
        args = CONFIGS[config]
        kernel = float(args[args.index("--kernel-us") + 1])
        shape = args[args.index("--shape") + 1] if "--shape" in args else "large"
        return ["work", *args, "--scale", str(self.machine.scale(kernel, shape))]

    def rate(self, config: str) -> float:
        """Work per second of one client that has the device to itself, without gemlet."""
        if config not in self.rates:
            (c,) = self.machine.run([Client(self.work(config))], None, self.seconds)
            self.rates[config] = c.result["work_s"] / c.result["seconds"]
        return self.rates[config]

    # --- scenarios -------------------------------------------------------------------------------------------------

    def alone(self) -> None:
        """One client, nobody else: what the hook costs."""
        for config in ("100us", "1ms", "graph of 10x100us", "default stream"):
            native, hooked = [], []
            for _ in range(3):
                (c,) = self.machine.run([Client(self.work(config))], None, 2)
                native.append(c.result["work_s"])
                with Sharing(self.machine) as sharing:
                    (c,) = self.machine.run([Client(self.work(config), "a")], sharing, 2)
                    hooked.append(c.result["work_s"])
            self.add(
                f"alone, {config}: hooked / native", statistics.median(hooked) / statistics.median(native), ">= 0.997"
            )

    def launch(self) -> None:
        """Empty kernels and small allocations, interleaved rounds; also with the hook loaded but no daemon."""
        passive = dict(self.machine.env, LD_PRELOAD=str(self.machine.lib / "libgemhook.so.1"))

        def nanoseconds(mode: str, count: int, env: dict[str, str]) -> float:
            out = self.machine.output([mode, "--count", str(count)], env)
            return out["best"]  # of ten rounds: what disturbs a round only ever adds

        with Sharing(self.machine) as sharing:
            envs = [self.machine.env, passive, sharing.env("a")]
            for mode, count in (("launch", 50_000), ("alloc", 10_000)):
                rounds = [[nanoseconds(mode, count, env) for env in envs] for _ in range(7)]
                native, idle, hooked = (statistics.median(column) for column in zip(*rounds, strict=True))
                note = f"{native:.0f} -> {hooked:.0f} ns (hook without daemon {idle:.0f})"
                if mode == "launch":
                    self.add("empty kernel launches: hooked / native", hooked / native, "<= 1.01", note=note)
                else:
                    self.add("cuMemAlloc + cuMemFree: added us a pair", (hooked - native) / 1000, "<= 0.6", note=note)

    def start(self) -> None:
        """Process start: a program that uses the device once."""

        def times(env: dict[str, str]) -> float:
            begin = time.perf_counter()
            subprocess.run([self.machine.client, "launch", "--count", "1"], env=env, check=True, capture_output=True)
            return time.perf_counter() - begin

        with Sharing(self.machine) as sharing:
            pairs = [(times(self.machine.env), times(sharing.env("a"))) for _ in range(7)]
        added = statistics.median(h - n for n, h in pairs)
        self.add("process start: added ms", added * 1000, "<= 30")

    def unmanaged(self) -> None:
        """The baseline: the driver's own time slicing."""
        config = "100us"
        rate = self.rate(config)
        clients = self.machine.run([Client(self.work(config)) for _ in range(2)], None, self.seconds)
        shares = [c.work_between(0, self.seconds) / (self.seconds * rate) for c in clients]
        self.add("unmanaged, 2 clients: total", sum(shares), "-", note=" / ".join(f"{s:.3f}" for s in shares))

    def shares(self) -> None:
        """Two saturating clients with minima that add up to 1."""
        for config in CONFIGS:
            rate = self.rate(config)
            for split in ((75, 25), (50, 50), (90, 10)) if config == "100us" else ((75, 25),):
                with Sharing(self.machine) as sharing:
                    clients = []
                    for name, share in zip("ab", split, strict=True):
                        sharing.group(name, min=share / 100)
                        clients.append(Client(self.work(config), name))
                    self.machine.run(clients, sharing, self.seconds)
                got = [c.work_between(0, self.seconds) / (self.seconds * rate) for c in clients]
                worst = max(
                    worst_window(c, s / 100, rate, 0, self.seconds) for c, s in zip(clients, split, strict=True)
                )
                label = f"{config}, {split[0]}/{split[1]}"
                self.add(f"{label}: total", sum(got), ">= 0.985", note=" / ".join(f"{s:.3f}" for s in got))
                self.add(f"{label}: worst 1 s window", worst, "<= 0.02")

    def caps(self) -> None:
        """One client alone under a maximum."""
        for config in ("100us", "100us small blocks", "1ms"):
            rate = self.rate(config)
            for cap in (10, 25, 50):
                with Sharing(self.machine) as sharing:
                    sharing.group("a", max=cap / 100)
                    (c,) = self.machine.run([Client(self.work(config), "a")], sharing, self.seconds)
                worst = worst_window(c, cap / 100, rate, 0, self.seconds)
                got = c.work_between(0, self.seconds) / (self.seconds * rate)
                gaps = [b[0] - a[0] for a, b in zip(c.done, c.done[1:], strict=False)]
                self.add(
                    f"{config}, alone at {cap} %: worst 1 s window", worst, "<= 0.02",
                    note=f"got {got:.4f}, longest stall {max(gaps) * 1000:.0f} ms",
                )  # fmt: skip

    def elastic(self) -> None:
        """A neighbour arrives and leaves: how soon the new shares hold (100 ms windows)."""
        config = "100us"
        rate = self.rate(config)
        with Sharing(self.machine) as sharing:
            sharing.group("a", min=0.3)
            sharing.group("b", min=0.7)
            a, b = Client(self.work(config), "a"), Client([*self.work(config), "--seconds", "2"], "b", begin=2.0)
            self.machine.run([a, b], sharing, 6)

        def settles(at: float, promise: float) -> float:
            for step in range(200):
                t = at + step * 0.005
                if abs(a.work_between(t, t + 0.2) / (0.2 * rate) - promise) <= 0.06:
                    return t - at
            return 1.0

        self.add("neighbour arrives: ms until 200 ms windows are within 0.06", settles(2.0, 0.3) * 1000, "<= 100")
        self.add("neighbour leaves: the same", settles(4.0, 1.0) * 1000, "<= 100")
        self.add("alone before and after: share", a.work_between(0.0, 2.0) / (2 * rate), "~ 1")

    def many(self) -> None:
        """Eight clients, eight shares."""
        config = "100us"
        rate = self.rate(config)
        promise = [0.03, 0.05, 0.07, 0.10, 0.13, 0.16, 0.21, 0.25]
        with Sharing(self.machine) as sharing:
            clients = []
            for i, p in enumerate(promise):
                sharing.group(f"g{i}", min=p, max=1.0)
                clients.append(Client(self.work(config), f"g{i}"))
            self.machine.run(clients, sharing, self.seconds)
        total = sum(c.work_between(0, self.seconds) for c in clients) / (self.seconds * rate)
        worst = max(worst_window(c, p, rate, 0, self.seconds) for c, p in zip(clients, promise, strict=True))
        self.add("8 clients, 8 shares: total", total, ">= 0.985")
        self.add("8 clients, 8 shares: worst 1 s window", worst, "<= 0.02")

    def ledger_of_time(self) -> None:
        """What the arbiter charged against work that was done."""
        config = "100us"
        rate = self.rate(config)
        with Sharing(self.machine) as sharing:
            sharing.group("a", min=0.6)
            sharing.group("b", min=0.4)
            clients = [Client(self.work(config), n) for n in "ab"]
            self.machine.run(clients, sharing, self.seconds)
            used = sharing.used()
        for c in clients:
            work = c.done[-1][1] / rate if c.done else 0.0
            self.add(f"charged / done, group {c.group}", used[c.group or ""] / work, "1 +- 0.02")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    scenarios = ["alone", "launch", "start", "unmanaged", "shares", "caps", "elastic", "many", "ledger_of_time"]
    chosen = options.only.split(",") if options.only else scenarios
    with tempfile.TemporaryDirectory() as workdir:
        machine = Machine(simulate=options.simulate, workdir=Path(workdir))
        about = machine.describe()
        print(" | ".join(f"{k}: {v}" for k, v in about.items()), flush=True)
        bench = Bench(machine, options.seconds)
        failed = 0
        for name in chosen:
            scenario: Callable[[], None] = getattr(bench, name)
            try:
                scenario()
            except (RuntimeError, subprocess.SubprocessError, OSError) as error:
                failed += 1
                print(f"{name}: {error}", file=sys.stderr, flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "sharing.json").write_text(json.dumps({"about": about, "rows": bench.rows}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
