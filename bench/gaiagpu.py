"""GaiaGPU's experiments: a device in 1, 2, 3, 4, 5 and 8 parts, and 2, 4 and 8 programs kept apart.

    python -m bench.gaiagpu [--simulate] [--seconds 4] [--only time,memory,isolation] [--cases 1,2,8] [--out DIR]

Part n of n is a group with a minimum and a maximum of 1/n of the time, or 1/n of the device's memory, or both.

time       partitioning, time only: a program on each part does a fixed amount of work. Its time is compared with what
           its part should make of it: n times as long as alone, but a program that pauses and needs less than its part
           is not slowed down. Once more with the other parts empty: the time should be the same.
memory     partitioning, memory only: a program on each part takes memory until it is refused, again and again, beside
           one that is always busy. Time is shared as it comes, so n times as long as alone is due.
isolation  both limits. Programs begin one after another; each is busy, and a second one of its group takes memory until
           it is refused. What each had over time is in the result (`courses`).

The paper trained MNIST, Cifar10 and AlexNet in containers on a GPU of its time; here the programs are kernels of a
known length, so that a part's share can be told from the time that the program takes. Every number is a ratio within
one run. On the simulated machine it checks the mechanism, and says so; it measures no GPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from bench.machine import Client, Sharing
from bench.report import grid, number
from bench.runner import Bench, main
from bench.windows import Completed, share_line, starts, worst_of

if TYPE_CHECKING:
    import argparse

PARTS = (1, 2, 3, 4, 5, 8)
ISOLATED = (2, 4, 8)
BUSY, PAUSES = "100us", "20us, gaps of 40us"
PIECES = 64  # of a part of the memory: how finely it is taken
FILLS_S = 0.8  # in which a part is full
GRANULE = 2 << 20  # of the driver: what is not a multiple of it takes more than was asked for
FIXED = 0.6  # of a run, that the fixed work is to take if all is as it should be
OTHERS = ("all in use", "the others empty")
LONGER = "<= 1.05"  # execution time over what is due
WITHIN = "<= 0.02"  # of the device, in any second: gemlet's own aim for shares
STEP_S = 0.05  # of a course


def due(parts: int, rate: float) -> float:
    """How many times as long as alone a program takes on one of so many parts. rate: of the device, alone."""
    return max(1.0, parts * rate)


def finished(done: Completed, work: float) -> float:
    """Seconds until that much work was done; NaN if it never was."""
    return next((at for at, until in done.entries if until >= work), math.nan)


class GaiaBench(Bench):
    name: ClassVar[str] = "gaiagpu"
    scenarios: ClassVar[list[str]] = ["time", "memory", "isolation"]
    seconds: ClassVar[float] = 4.0  # three minutes in all
    cases: tuple[int, ...] = PARTS

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--cases", type=numbers, default=PARTS, help=f"numbers of parts; default {','.join(map(str, PARTS))}"
        )

    def chose(self, options: argparse.Namespace) -> None:
        self.cases = options.cases
        self.seen: dict[str, float] = {}  # the device's memory, as a program without gemlet sees it
        self.cells: dict[str, dict[int, str]] = {}  # of the table, by what and number of parts

    # --- programs ----------------------------------------------------------------------------------------------------

    def part(self, parts: int) -> int:
        """Bytes of a part: the device's memory less what the driver keeps for programs, of which each part has two.

        The daemon asks NVML for the latter and charges it; here is no daemon, only its server.
        """
        if not self.seen:
            self.seen = self.machine.output(["fill", "--memory-mib", "2", "--seconds", "0"], self.machine.env)
        total, free = self.seen["seen_bytes"], self.seen["free_bytes"]
        return int(total - 2 * parts * (total - free)) // parts

    def fill(self, part: int, group: str, begin: float = 0.0) -> Client:
        """Takes that many bytes in `FILLS_S`, and is then refused."""
        piece = max(1, part // PIECES // GRANULE) * GRANULE >> 20
        return Client(["fill", "--memory-mib", str(piece), "--rate", str(PIECES / FILLS_S)], group, begin)

    def times(self, clients: list[Client], config: str, factor: float) -> list[float]:
        """Execution time of each, for the same work, over `factor` times what it takes alone."""
        rate = self.rate(config)
        alone = FIXED * self.length / factor  # seconds
        return [finished(c.done, alone * rate) / (alone * factor) for c in clients]

    # --- scenarios ---------------------------------------------------------------------------------------------------

    def time(self) -> None:
        """Minimum and maximum of 1/n each; then one of the parts alone."""
        for config in (BUSY, PAUSES):
            for parts in self.cases:
                factor = due(parts, self.rate(config))
                for programs in sorted({1, parts}, reverse=True):
                    with Sharing(self.machine) as sharing:
                        for i in range(parts):
                            sharing.group(f"part-{i}", min=1 / parts, max=1 / parts)
                        clients = [Client(self.work(config), f"part-{i}") for i in range(programs)]
                        self.machine.run(clients, sharing, self.length)
                    took = self.times(clients, config, factor)
                    others = OTHERS[programs != parts]
                    note = f"due: {factor:.2f} x alone; {said(took)}"
                    aim = LONGER if config == BUSY else "-"  # how soon one that pauses is back is its host's affair
                    self.tell(parts, f"execution time / due, {config}, {others}", worst(took), aim, note)

    def memory(self) -> None:
        """1/n of the memory each, and no limit of time."""
        for parts in self.cases:
            part = self.part(parts)
            with Sharing(self.machine) as sharing:
                for i in range(parts):
                    sharing.group(f"part-{i}", memory=part)
                busy = [Client(self.work(BUSY), f"part-{i}") for i in range(parts)]
                fills = [self.fill(part, f"part-{i}") for i in range(parts)]
                self.machine.run([*busy, *fills], sharing, self.length)
            took = self.times(busy, BUSY, due(parts, self.rate(BUSY)))
            self.tell(parts, "memory parted only: execution time / due", worst(took), "-", said(took))
            self.held("memory parted only", fills, part, parts)

    def isolation(self) -> None:
        """Both limits; programs that come one after another, over time."""
        rate = self.rate(BUSY)
        for parts in (n for n in ISOLATED if n in self.cases):
            end, part = 2 * self.length, self.part(parts)
            begins = [self.length * i / parts for i in range(parts)]
            with Sharing(self.machine) as sharing:
                for i in range(parts):
                    sharing.group(f"part-{i}", min=1 / parts, max=1 / parts, memory=part)
                busy = [Client(self.work(BUSY), f"part-{i}", begin) for i, begin in enumerate(begins)]
                fills = [self.fill(part, f"part-{i}", begin) for i, begin in enumerate(begins)]
                self.machine.run([*busy, *fills], sharing, end)
            found = [worst_of(c.done, 1 / parts, rate, c.begin, end) for c in busy]
            errors = [abs(each.error) for each in found]
            at = found[errors.index(max(errors))].begin
            note = f"mean of the programs {sum(errors) / parts:.4f}; the worst second begins at {at:.1f} s"
            self.tell(parts, "isolation: share in any second off by", max(errors), WITHIN, note)
            self.held("isolation", fills, part, parts)
            groups = [
                {
                    "name": c.group,
                    "begin": round(c.begin, 3),
                    "points": share_line(c.done, rate, end),
                    "held": held_line(taken, part, end),
                }
                for c, taken in zip(busy, fills, strict=True)
            ]
            self.report.put("courses", {"name": f"{parts} programs", "promise": 1 / parts, "groups": groups})

    def held(self, label: str, fills: list[Client], part: int, parts: int) -> None:
        """What programs held when they were refused: within their part, and every time the same."""
        refused = [int(c.result["refused"]) for c in fills]
        most = [c.result["most_bytes"] / part for c in fills]
        least = [c.result["least_bytes"] / part for c in fills]
        if not all(refused):
            raise RuntimeError(f"{label}, {parts} parts: a program was never refused: no limit, or too few seconds")
        note = f"of {sum(refused)} refusals"
        self.tell(parts, f"{label}: memory held when refused / part, most", max(most), "<= 1", note)
        self.tell(parts, f"{label}: ... least / most, of all programs", min(least) / max(most), ">= 0.98")

    def tell(self, parts: int, what: str, value: float, target: str, note: str = "") -> None:
        self.report.add(f"{parts} parts: {what}", value, target, note=note)
        self.cells.setdefault(what, {})[parts] = number(value)

    def finish(self) -> None:
        """All results by number of parts."""
        used = [n for n in self.cases if any(n in by for by in self.cells.values())]
        lines = [[what, *(by.get(n, "") for n in used)] for what, by in self.cells.items()]
        if lines:
            print("\n" + grid(["parts", *map(str, used)], lines), flush=True)


def worst(took: list[float]) -> float:
    """The longest; NaN if one was never done."""
    return math.nan if any(map(math.isnan, took)) else max(took)


def said(values: list[float]) -> str:
    return " / ".join(map(number, values))


def held_line(client: Client, part: int, end: float) -> list[tuple[float, float]]:
    """(time, how much of its part of the memory the program held)."""
    held = Completed([(row[0] / 1e9 + client.begin, row[1] / part) for row in client.rows])
    return [(round(t, 3), round(held.until(t), 4)) for t in starts(0.0, end, 0.0, STEP_S)]


def numbers(text: str) -> tuple[int, ...]:
    chosen = tuple(map(int, text.split(",")))
    if not all(1 <= n <= 64 for n in chosen):
        raise ValueError(text)
    return chosen


if __name__ == "__main__":
    raise SystemExit(main(GaiaBench, __doc__ or ""))
