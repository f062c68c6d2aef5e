"""Memory beyond the device: what sharing costs when programs do not fit together, as one table.

    python bench/swap.py [--capacity-gib 16] [--seconds 60] [--json FILE]
    python bench/swap.py --simulate

Each row runs programs that hold part of an artificial capacity, on one device, and compares the work they complete with
that of running them one after the other without gemlet. Every program looks at its
bytes in the end; a wrong one fails the benchmark. Managed memory is not used: no real card shall have too much of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import Client, Machine, Sharing

GIB = 1 << 30
MIB = 1 << 20
KERNEL_US = 1000.0


@dataclass(frozen=True)
class Row:
    """One line of the table. ``moved_gib``: copied, both ways. ``ms_per_gib``: hand-over time per GiB brought in."""

    scenario: str
    value: float
    target: str
    met: bool
    moved_gib: float
    ms_per_gib: float | None
    fairness: float | None


class Scenarios:
    """Runs programs of one size on a device with a capacity."""

    def __init__(self, machine: Machine, capacity: int, seconds: float) -> None:
        self.machine = machine
        self.capacity = capacity
        self.seconds = seconds
        self.uuid = bytes.fromhex(str(machine.output(["uuid"], machine.env)["uuid"]))
        self.spin = machine.spin(KERNEL_US)
        # Writing it all, and pinning the host's side of it (0.3 s a GiB), is over before the clock starts.
        self.start_limit = 60 + 3 * capacity / GIB
        self.rows: list[Row] = []

    def arguments(self, part: float, cpu: float = 0.0, *, writes: bool = True, dead: float = 0.0) -> list[str]:
        memory = str(int(self.capacity * part) // MIB)
        # Batches of 5 ms, at most two under way: what is in flight when a program has to stop.
        work = ["work", "--kernel-us", str(KERNEL_US), "--batch", "5", "--depth", "2", *self.spin]
        phases = ["--cpu", str(cpu), "--phase", str(self.seconds / 15)] if cpu else []
        # All of it is other than it was within an epoch of seconds; the simulated machine writes with the host's CPU.
        rewrite = ["--rewrite-mib", "1" if self.machine.simulate else "64"] if writes else []
        return [*work, "--memory-mib", memory, *rewrite, *phases, *(["--dead", str(dead)] if dead else [])]

    def rate(self, args: list[str], cpu: float = 0.0) -> float:
        """Seconds of work a second that one program alone completes without gemlet."""
        # Whole phases, where there are any.
        seconds = self.seconds / 15 / (1 - cpu) * 4 if cpu else min(5.0, self.seconds)
        (client,) = self.machine.run([Client(args)], None, seconds, start_limit=self.start_limit)
        return client.result["work_s"] / client.result["seconds"]

    def shared(self, args: list[str], count: int, epoch: float | None = None) -> tuple[list[float], Watch]:
        """Seconds of work of each program, and what was seen of their memory."""
        options: dict[str, int | float] = {}
        if epoch is not None:
            options = {"epoch_min": int(min(0.5, epoch) * 1e9), "epoch_max": int(epoch * 1e9)}
        with Sharing(self.machine, **options) as sharing, Watch(sharing) as watch:
            sharing.server.add_device(self.uuid, 0)
            sharing.server.set_capacity(self.uuid, self.capacity)
            names = [f"g{i}" for i in range(count)]
            for name in names:
                sharing.group(name)
            clients = [Client(args, name) for name in names]
            self.machine.run(clients, sharing, self.seconds, start_limit=self.start_limit)
        wrong = sum(c.result["wrong"] for c in clients)
        if wrong:
            raise SystemExit(f"error: {wrong} words are not what was written")
        return [c.result["work_s"] for c in clients], watch

    def row(
        self, scenario: str, count: int, part: float, least: float, *, cpu: float = 0.0, epoch: float | None = None
    ) -> None:
        """Work of ``count`` programs of ``part`` of the capacity, over that of one after the other."""
        args = self.arguments(part, cpu)
        alone = self.rate(args, cpu) * self.seconds
        work, watch = self.shared(args, count, epoch)
        value = sum(work) / alone
        moved = watch.moved_in + watch.moved_out
        idle = part * count <= 1.0
        met = value >= least and (moved == 0 or not idle)
        target = f">= {least:.2f}" + (", nothing moves" if idle else "")
        fairness = max(work) / min(work) if count > 1 and min(work) > 0 else None
        self.add(Row(scenario, value, target, met, moved / GIB, watch.ms_per_gib(), fairness))

    def copied_row(self, scenario: str, most: float, *, writes: bool, dead: float = 0.0) -> None:
        """Two programs of 90 %: of what left the device, the part that was copied.

        What is only read has to be copied once; as many bytes as a program has are left out for that.
        """
        _, watch = self.shared(self.arguments(0.9, writes=writes, dead=dead), 2, 5)
        first = 0 if writes else watch.bytes
        left = watch.moved_out + watch.dropped - first
        value = max(0, watch.moved_out - first) / left if left > 0 else float("nan")
        moved = (watch.moved_in + watch.moved_out) / GIB
        target = f"<= {most:.2f} of it copied"
        self.add(Row(scenario, value, target, value <= most, moved, watch.ms_per_gib(), None))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(line(row), flush=True)


class Watch:
    """Follows the memory of a server's clients until they are gone."""

    def __init__(self, sharing: Sharing) -> None:
        self._server = sharing.server
        self._seen: dict[int, dict[str, Any]] = {}
        self._rates: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.is_set():
            for device in self._server.snapshot()["devices"]:
                for group in device["groups"]:
                    for client in group["clients"]:
                        self._note(client)
            time.sleep(0.05)

    def _note(self, client: dict[str, Any]) -> None:
        now, before = client["movable"], self._seen.get(client["id"])
        if now is None:
            return
        now["most"] = max(now["bytes"], before["most"] if before else 0)
        if before and now["handover_ns"] != before["handover_ns"] and now["here"]:
            came = now["moved_in"] - before.get("at_last", 0)
            if came >= 64 * MIB:
                self._rates.append(now["handover_ns"] / 1e6 / (came / GIB))
            now["at_last"] = now["moved_in"]
        elif before:
            now["at_last"] = before.get("at_last", 0)
        self._seen[client["id"]] = now

    @property
    def moved_in(self) -> int:
        return sum(c["moved_in"] for c in self._seen.values())

    @property
    def moved_out(self) -> int:
        return sum(c["moved_out"] for c in self._seen.values())

    @property
    def dropped(self) -> int:
        """Bytes that left the device without a copy."""
        return sum(c["dropped"] for c in self._seen.values())

    @property
    def bytes(self) -> int:
        """The most that programs had."""
        return sum(c["most"] for c in self._seen.values())

    def ms_per_gib(self) -> float | None:
        """Median time of a whole hand-over, the other's way out included, per GiB that came in."""
        return sorted(self._rates)[len(self._rates) // 2] if self._rates else None


def line(row: Row) -> str:
    """One row as text."""
    rate = "-" if row.ms_per_gib is None else f"{row.ms_per_gib:.0f}"
    fairness = "-" if row.fairness is None else f"{row.fairness:.2f}"
    verdict = "yes" if row.met else "NO"
    head = f"{row.scenario:<34} {row.value:6.3f}  {row.target:<24} {verdict:<4}"
    return f"{head} {row.moved_gib:9.2f} {rate:>10} {fairness:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="on the simulated machine, small and short")
    parser.add_argument("--capacity-gib", type=float, help="artificial capacity of the device (16; simulated: 0.5)")
    parser.add_argument("--seconds", type=float, help="of each scenario (60; simulated: 8)")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    capacity = int((options.capacity_gib or (0.5 if options.simulate else 16.0)) * GIB)
    seconds = options.seconds or (8.0 if options.simulate else 60.0)
    with tempfile.TemporaryDirectory() as workdir:
        machine = Machine(simulate=options.simulate, workdir=Path(workdir))
        about = machine.describe() | {"capacity_gib": str(capacity / GIB), "seconds": str(seconds)}
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        header = f"{'scenario':<34} {'value':>6}  {'target':<24} {'met':<4} {'moved GiB':>9} {'ms per GiB':>10}"
        print(f"{header} {'max/min':>9}")
        scenarios = Scenarios(machine, capacity, seconds)
        scenarios.row("1 alone", 1, 0.9, 0.99)
        scenarios.row("2 of 40 %", 2, 0.4, 0.98)
        scenarios.row("2 of 60 %, epochs <= 10 s", 2, 0.6, 0.97, epoch=10)
        scenarios.row("2 of 90 %, epochs <= 10 s", 2, 0.9, 0.95, epoch=10)
        scenarios.row("2 of 90 %, epochs <= 5 s", 2, 0.9, 0.90, epoch=5)
        scenarios.row("2 of 90 %, half of the time on CPU", 2, 0.9, 1.35, cpu=0.5)
        scenarios.row("3 of 50 %", 3, 0.5, 0.95)
        scenarios.copied_row("2 of 90 % that is only read", 0.02, writes=False)
        scenarios.copied_row("2 of 90 %, 85 % of it dead cache", 0.2, writes=True, dead=0.85)
        if options.json:
            rows = [asdict(row) for row in scenarios.rows]
            options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")
    if options.simulate:
        print("simulated: no number above says anything about a GPU", file=sys.stderr)
    elif not all(row.met for row in scenarios.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
