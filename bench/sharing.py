"""The numbers of README: what sharing costs, how exact shares are, how fast they hold. Prints a table, writes JSON.

    python -m bench.sharing [--simulate] [--seconds 5] [--only NAME,...] [--out DIR]

Every number is a ratio within one run of this script; the unmanaged baseline (the driver's own time slicing) is run
beside. On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import ClassVar

from bench.machine import Client, Happening, Sharing
from bench.runner import Bench, main
from bench.windows import settled, share_line, worst_window

SATURATING = ["100us", "100us small blocks", "1ms", "graph of 10x100us", "default stream"]
PROCESSES = 7


class SharingBench(Bench):
    name: ClassVar[str] = "sharing"
    scenarios: ClassVar[list[str]] = [
        "alone", "launch", "start", "unmanaged", "shares", "caps", "elastic", "many", "ledger_of_time",
    ]  # fmt: skip

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
            self.report.add(
                f"alone, {config}: hooked / native", statistics.median(hooked) / statistics.median(native), ">= 0.997"
            )

    def launch(self) -> None:
        """Empty kernels and small allocations; also with the hook loaded but no daemon.

        Processes differ by three per cent, depending on where their code is loaded, so launches with and without the
        hook are compared within each of several processes.
        """
        passive = dict(self.machine.env, LD_PRELOAD=str(self.machine.lib / "libgemhook.so.1"))

        def nanoseconds(count: int, env: dict[str, str]) -> float:
            out = self.machine.output(["alloc", "--count", str(count)], env)
            return out["best"]  # of ten rounds: what disturbs a round only ever adds

        def compared(env: dict[str, str]) -> tuple[float, float]:
            outs = [self.machine.output(["compare", "--count", "200000"], env) for _ in range(PROCESSES)]
            return statistics.median(o["native"] for o in outs), statistics.median(o["added"] for o in outs)

        with Sharing(self.machine) as sharing:
            envs = [self.machine.env, passive, sharing.env("a")]
            native, added = compared(envs[2])
            _, nothing = compared(envs[0])
            _, idle = compared(envs[1])
            note = f"{native:.0f} ns + {added:.0f} (hook without daemon + {idle:.0f}, without hook {nothing:+.0f})"
            self.report.add("empty kernel launches: hooked / native", 1 + added / native, "<= 1.01", note=note)
            rounds = [[nanoseconds(4_000, env) for env in envs] for _ in range(PROCESSES)]
            native, idle, hooked = (statistics.median(column) for column in zip(*rounds, strict=True))
            note = f"{native:.0f} -> {hooked:.0f} ns (hook without daemon {idle:.0f})"
            self.report.add("cuMemAlloc + cuMemFree: added us a pair", (hooked - native) / 1000, "<= 0.6", note=note)

    def start(self) -> None:
        """Process start: a program that uses the device once."""

        def times(env: dict[str, str]) -> float:
            begin = time.perf_counter()
            subprocess.run([self.machine.client, "launch", "--count", "1"], env=env, check=True, capture_output=True)
            return time.perf_counter() - begin

        with Sharing(self.machine) as sharing:
            pairs = [(times(self.machine.env), times(sharing.env("a"))) for _ in range(7)]
        added = statistics.median(h - n for n, h in pairs)
        self.report.add("process start: added ms", added * 1000, "<= 30")

    def unmanaged(self) -> None:
        """The baseline: the driver's own time slicing."""
        config = "100us"
        rate = self.rate(config)
        clients = self.machine.run([Client(self.work(config)) for _ in range(2)], None, self.length)
        shares = [c.work_between(0, self.length) / (self.length * rate) for c in clients]
        self.report.add("unmanaged, 2 clients: total", sum(shares), "-", note=" / ".join(f"{s:.3f}" for s in shares))

    def shares(self) -> None:
        """Two saturating clients with minima that add up to 1."""
        for config in SATURATING:
            rate = self.rate(config)
            for split in ((75, 25), (50, 50), (90, 10)) if config == "100us" else ((75, 25),):
                with Sharing(self.machine) as sharing:
                    clients = []
                    for name, share in zip("ab", split, strict=True):
                        sharing.group(name, min=share / 100)
                        clients.append(Client(self.work(config), name))
                    self.machine.run(clients, sharing, self.length)
                got = [c.work_between(0, self.length) / (self.length * rate) for c in clients]
                worst = max(
                    worst_window(c.done, s / 100, rate, 0, self.length) for c, s in zip(clients, split, strict=True)
                )
                label = f"{config}, {split[0]}/{split[1]}"
                self.report.add(f"{label}: total", sum(got), ">= 0.985", note=" / ".join(f"{s:.3f}" for s in got))
                self.report.add(f"{label}: worst 1 s window", worst, "<= 0.02")

    def caps(self) -> None:
        """One client alone under a maximum."""
        for config in ("100us", "100us small blocks", "1ms"):
            rate = self.rate(config)
            for cap in (10, 25, 50):
                with Sharing(self.machine) as sharing:
                    sharing.group("a", max=cap / 100)
                    (c,) = self.machine.run([Client(self.work(config), "a")], sharing, self.length)
                worst = worst_window(c.done, cap / 100, rate, 0, self.length)
                got = c.work_between(0, self.length) / (self.length * rate)
                longest = c.done.gaps()[0][0]
                self.report.add(
                    f"{config}, alone at {cap} %: worst 1 s window", worst, "<= 0.02",
                    note=f"got {got:.4f}, longest stall {longest * 1000:.0f} ms",
                )  # fmt: skip

    def elastic(self) -> None:
        """A neighbour arrives and leaves, then a limit is set: how soon the new shares hold."""
        config = "100us"
        rate = self.rate(config)
        arrives, leaves, limited, end = 2.0, 4.0, 6.0, 8.0
        with Sharing(self.machine) as sharing:
            sharing.group("a", min=0.3)
            sharing.group("b", min=0.7)
            a = Client(self.work(config), "a")
            b = Client([*self.work(config), "--seconds", str(leaves - arrives)], "b", begin=arrives)
            limit = Happening(limited, lambda: sharing.group("a", min=0.3, max=0.5))
            self.machine.run([a, b], sharing, end, [limit])
        for what, at, until, promise in (
            ("neighbour arrives", arrives, leaves, 0.3),
            ("neighbour leaves", leaves, limited, 1.0),
            ("limit of 50 % is set", limit.happened, end, 0.5),
        ):
            held = settled(a.done, promise, rate, at, until, window=0.2, tolerance=0.06)
            bound = "<= 50" if what.startswith("limit") else "<= 100"
            note = "" if held is not None else "never held"
            label = f"{what}: ms until all 200 ms windows are within 0.06"
            self.report.add(label, float("nan") if held is None else held * 1000, bound, note=note)
        self.report.add("alone before the neighbour: share", a.work_between(0.0, arrives) / (arrives * rate), ">= 0.98")
        self.report.put("courses", {
            "name": "elastic",
            "events": [[arrives, "b arrives"], [leaves, "b leaves"], [round(limit.happened, 3), "limit 50 % for a"]],
            "groups": [
                {"name": "a", "promise": "at least 30 %", "points": share_line(a.done, rate, end)},
                {"name": "b", "promise": "at least 70 %", "points": share_line(b.done, rate, end)},
            ],
        })  # fmt: skip

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
            self.machine.run(clients, sharing, self.length)
        total = sum(c.work_between(0, self.length) for c in clients) / (self.length * rate)
        worst = max(worst_window(c.done, p, rate, 0, self.length) for c, p in zip(clients, promise, strict=True))
        self.report.add("8 clients, 8 shares: total", total, ">= 0.985")
        self.report.add("8 clients, 8 shares: worst 1 s window", worst, "<= 0.015")

    def ledger_of_time(self) -> None:
        """What the arbiter charged against work that was done."""
        config = "100us"
        rate = self.rate(config)
        with Sharing(self.machine) as sharing:
            sharing.group("a", min=0.6)
            sharing.group("b", min=0.4)
            clients = [Client(self.work(config), n) for n in "ab"]
            self.machine.run(clients, sharing, self.length)
            used = sharing.used()
        for c in clients:
            work = c.done.total / rate
            self.report.add(f"charged / done, group {c.group}", used[c.group or ""] / work, "1 +- 0.02")


if __name__ == "__main__":
    raise SystemExit(main(SharingBench, __doc__ or ""))
