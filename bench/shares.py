"""Shares where they are hard to keep: under MPS, among bursty programs, while limits change; and what is charged for.

    python -m bench.shares [--simulate] [--seconds 5] [--only NAME,...] [--out DIR]

On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import ClassVar

from bench.machine import Client, Happening, Sharing
from bench.quantiles import quantile
from bench.runner import Bench, main
from bench.windows import settled, switching_point, worst_window

SPLITS = ((75, 25), (50, 50), (90, 10))
BURST = ["burst", "--kernel-us", "100", "--batch", "10", "--rate", "500"]  # 1 ms, 500 times a second
DEMAND = 0.5  # of the device: what BURST asks for
LATENCY = ["latency", "--kernel-us", "200", "--rate", "100"]
WINDOWS_US = (8000, 2000, 400, 40)
CYCLES_MS = (20, 40, 100)
LONG_MS = ((5, 20), (20, 30), (64, 147), (0.2, 64, 147))
CHANGES = 5  # each at another moment of a cycle


class SharesBench(Bench):
    name: ClassVar[str] = "shares"
    scenarios: ClassVar[list[str]] = ["mps", "costs", "launches", "bursts", "limit", "swap", "charges", "long"]

    def mps(self) -> None:
        """Two clients take turns under MPS: of kernels that take every thread slot, and half of them.

        In the last rows they may run side by side, and both get more than they were promised.
        """
        full, half = "100us, full", "100us"
        rates = {config: self.rate(config) for config in (full, half)}
        with self.machine.under_mps():
            turns = [(config, split, "alone") for config in (full, half) for split in SPLITS]
            for config, split, workload in [*turns, (full, SPLITS[0], "unknown"), (half, SPLITS[0], "unknown")]:
                with Sharing(self.machine) as sharing:
                    clients = []
                    for name, share in zip("ab", split, strict=True):
                        sharing.group(name, min=share / 100, workload=workload)
                        clients.append(Client(self.work(config), name))
                    self.machine.run(clients, sharing, self.length)
                got = [c.work_between(0, self.length) / (self.length * rates[config]) for c in clients]
                errors = [
                    worst_window(c.done, s / 100, rates[config], 0, self.length)
                    for c, s in zip(clients, split, strict=True)
                ]
                side_by_side = workload != "alone"
                label = f"MPS, {split[0]}/{split[1]}{'' if config == full else ', half of the thread slots'}"
                label += ", side by side if better" if side_by_side else ""
                note = " / ".join(f"{s:.3f}" for s in got)
                self.report.add(f"{label}: total", sum(got), ">= 0.995", note=note)
                self.report.add(f"{label}: worst 1 s window", max(errors), "-" if side_by_side else "<= 0.01")

    def costs(self) -> None:
        """What a total below 1 is made of: MPS itself, the bound on work in flight, hand-overs by their number."""
        config = "100us, full"
        rate = self.rate(config)
        with self.machine.under_mps():
            (native,) = self.machine.run([Client(self.work(config))], None, self.length)
            note = "one program, without gemlet / without MPS"
            self.report.add("MPS itself", native.work_between(0, self.length) / (self.length * rate), "-", note=note)
            for window in WINDOWS_US:
                with Sharing(self.machine, window_alone=window * 1000) as sharing:
                    (a,) = self.machine.run([Client(self.work(config), "a")], sharing, self.length)
                alone = a.work_between(0, self.length) / (self.length * rate)
                self.report.add(f"MPS, one program, {window} us in flight: total", alone, "-")
            for cycle in CYCLES_MS:
                with Sharing(self.machine, cycle_min=cycle * 1_000_000) as sharing:
                    clients = []
                    for name in "ab":
                        sharing.group(name, min=0.5, workload="alone")
                        clients.append(Client(self.work(config), name))
                    self.machine.run(clients, sharing, self.length)
                total = sum(c.work_between(0, self.length) for c in clients) / (self.length * rate)
                lost = (1 - total) * cycle * 1000 / 2
                note = f"{lost:.0f} us a hand-over if that were all"
                self.report.add(f"MPS, 50/50 with a cycle of {cycle} ms: total", total, "-", note=note)

    def launches(self) -> None:
        """Programs bound by their launches leave gaps, which another one fills; so most of eager PyTorch is."""
        for config in ("20us, gaps of 40us", "100us, gaps of 50us"):
            rate = self.rate(config)
            totals = {}
            for way in ("time slicing", "gemlet"):
                with contextlib.ExitStack() as stack:
                    sharing = None
                    if way == "gemlet":
                        sharing = stack.enter_context(Sharing(self.machine))
                        for name in "ab":
                            sharing.group(name)
                    clients = [Client(self.work(config), name) for name in "ab"]
                    self.machine.run(clients, sharing, self.length)
                    found = sharing.found() if sharing else {}
                got = [c.work_between(1, self.length) / ((self.length - 1) * rate) for c in clients]
                totals[way] = sum(got)
                note = " / ".join(f"{share:.3f}" for share in got)
                note += "".join(f"; {name}: {what}" for name, what in found.items())
                self.report.add(f"two programs of {config}, {way}: total", totals[way], "-", note=note)
            better = totals["gemlet"] / totals["time slicing"]
            self.report.add(f"two programs of {config}: gemlet / time slicing", better, ">= 0.97")

    def bursts(self) -> None:
        """1 ms bursts 500 times a second, so half of the device, beside batches of 10 ms.

        With a minimum of 30 % the bursts cannot all be done: their backlog grows, and they get 30 %. With a minimum of
        50 % all of them are done. Either way the neighbour gets the rest.
        """
        rate = self.rate("batches of 100x100us")
        for low in (0.3, 0.5):
            promises = (min(low, DEMAND), 1 - min(low, DEMAND))
            with Sharing(self.machine) as sharing:
                sharing.group("bursts", min=low)
                sharing.group("batches", min=1 - low)
                bursts = Client(self.scaled(BURST), "bursts")
                batches = Client(self.work("batches of 100x100us"), "batches")
                self.machine.run([bursts, batches], sharing, self.length)
                used = sharing.used()
            label = f"bursts with a minimum of {low:.0%} beside batches"
            got = [c.work_between(0, self.length) / (self.length * rate) for c in (bursts, batches)]
            self.report.add(f"{label}: total", sum(got), ">= 0.97")
            for c, share, promise in zip((bursts, batches), got, promises, strict=True):
                worst = worst_window(c.done, promise, rate, 0, self.length)
                note = f"worst 1 s window off by {worst:.3f}"
                if c is bursts and c.latencies_us:
                    late = [quantile(c.latencies_us, q) / 1000 for q in (0.5, 0.99)]
                    note += f"; burst latency p50 {late[0]:.1f} ms, p99 {late[1]:.1f} ms"
                self.report.add(f"{label}: share of the {c.group}", share, f"{promise:g} +- 0.02", note=note)
                self.charged(f"{label}: charged / done, {c.group}", used, c, rate)

    def limit(self) -> None:
        """A maximum is lowered from 50 to 20 % while its program runs alone."""
        rate = self.rate("100us")
        found, windows = [], []
        for half, moment in self.moments():
            with Sharing(self.machine) as sharing:
                sharing.group("a", max=0.5)
                a = Client(self.work("100us"), "a")
                change = Happening(moment, lambda s=sharing: s.group("a", max=0.2))
                self.machine.run([a], sharing, 2 * half, [change])
            end = 2 * half
            point = switching_point(a.done, (0.3, change.happened), (change.happened + 0.2, end))
            found.append((point - change.happened) * 1000)
            windows.append(settled(a.done, 0.2, rate, change.happened, end, window=0.2, tolerance=0.06))
        self.changed("limit 50 -> 20 %", found, windows)

    def swap(self) -> None:
        """Minima of 75/25 become 25/75 while both programs run."""
        rate = self.rate("100us")
        found, windows = [], []
        for half, moment in self.moments():
            with Sharing(self.machine) as sharing:

                def minima(a: float, b: float, s: Sharing = sharing) -> None:
                    # The falling one first, so that they never sum to more than 1.
                    for name, share in sorted((("a", a), ("b", b)), key=lambda pair: pair[1]):
                        s.group(name, min=share)

                minima(0.75, 0.25)
                clients = [Client(self.work("100us"), name) for name in "ab"]
                change = Happening(moment, lambda m=minima: m(0.25, 0.75))
                self.machine.run(clients, sharing, 2 * half, [change])
            end = 2 * half
            for c, promise in zip(clients, (0.25, 0.75), strict=True):
                point = switching_point(c.done, (0.3, change.happened), (change.happened + 0.2, end))
                found.append((point - change.happened) * 1000)
                windows.append(settled(c.done, promise, rate, change.happened, end, window=0.2, tolerance=0.06))
        self.changed("minima 75/25 -> 25/75", found, windows)

    def moments(self) -> list[tuple[float, float]]:
        half = max(1.5, self.length / 2)
        return [(half, half + 0.0073 * i) for i in range(CHANGES)]

    def changed(self, label: str, found: list[float], windows: list[float | None]) -> None:
        note = f"median {statistics.median(found):.1f} of {len(found)}, from {min(found):.1f} to {max(found):.1f}"
        self.report.add(
            f"{label}: ms until it holds, by the switching point, worst", max(map(abs, found)), "<= 50", note=note
        )
        held = [w * 1000 for w in windows if w is not None]
        never = len(windows) - len(held)
        note = f"{never} of {len(windows)} never within it" if never else ""
        value = float("nan") if never else max(held)
        self.report.add(f"{label}: ms until all 200 ms windows are within 0.06, worst", value, "<= 50", note=note)

    def charges(self) -> None:
        """Device time charged against work done: saturating programs, and requests that come and go."""
        rate = self.rate("100us")
        with Sharing(self.machine) as sharing:
            sharing.group("a", min=0.6)
            sharing.group("b", min=0.4)
            clients = [Client(self.work("100us"), name) for name in "ab"]
            self.machine.run(clients, sharing, self.length)
            used = sharing.used()
        for c in clients:
            self.charged(f"60/40, saturating: charged / done, {c.group}", used, c, rate, "1 +- 0.02")
        with Sharing(self.machine) as sharing:
            sharing.group("requests", priority="latency")
            sharing.group("training", priority="best-effort")
            requests = Client(self.scaled(LATENCY), "requests")
            training = Client(self.work("batches of 100x100us"), "training")
            self.machine.run([requests, training], sharing, self.length)
            used = sharing.used()
        # A request is charged from its grant, so its launch and the switch to its context count as its use.
        self.charged("latency client beside batches: charged / done, requests", used, requests, rate)
        self.charged("latency client beside batches: charged / done, training", used, training, rate)

    def long(self) -> None:
        """Kernels of all lengths: equal shares, and a minimum beside kernels that are longer than turns."""
        seconds = 3 * self.length
        for lengths in LONG_MS:
            got = self.of_lengths(lengths, {}, seconds)
            label = " and ".join(f"{ms:g}" for ms in lengths)
            note = " / ".join(f"{share:.3f}" for share in got)
            self.report.add(
                f"kernels of {label} ms: largest - smallest share", max(got) - min(got), "<= 0.05", note=note
            )
            self.report.add(f"kernels of {label} ms: total", sum(got), "-")
        for what, limits, target in (
            ("a minimum of 50 %", {"min": 0.5}, ">= 0.45"),
            ("a maximum of 10 %", {"max": 0.1}, "0.1 +- 0.02"),
        ):
            share, *_ = self.of_lengths(LONG_MS[-1], limits, seconds)
            self.report.add(f"{what} beside kernels of 64 and 147 ms", share, target)

    def of_lengths(self, lengths: tuple[float, ...], limits: dict[str, float], seconds: float) -> list[float]:
        """Shares of programs with one kernel each, in ms, in groups of their own; the first has the limits."""
        spin = self.machine.spin(1000)  # to measure long ones takes a minute
        works = [
            ["work", "--kernel-us", str(ms * 1000), "--batch", str(max(1, round(1 / ms))), "--depth", "2", *spin]
            for ms in lengths
        ]
        with Sharing(self.machine) as sharing:
            for i in range(len(lengths)):
                sharing.group(f"g{i}", **(limits if i == 0 else {}))
            clients = [Client(work, f"g{i}") for i, work in enumerate(works)]
            self.machine.run(clients, sharing, seconds)
        return [c.work_between(1, seconds) / (seconds - 1) for c in clients]

    def charged(self, label: str, used: dict[str, float], client: Client, rate: float, target: str = "-") -> None:
        done = client.done.total / rate
        if done > 0:
            note = f"{used[client.group or '']:.3f} s charged"
            self.report.add(label, used[client.group or ""] / done, target, note=note)


if __name__ == "__main__":
    raise SystemExit(main(SharesBench, __doc__ or ""))
