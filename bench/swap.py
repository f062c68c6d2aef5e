"""Memory beyond the device: what sharing costs when programs do not fit together, and what moves.

    python -m bench.swap [--capacity-gib 16] [--seconds 30] [--only NAME,...] [--quick] [--out DIR]
    python -m bench.swap --simulate

Programs hold parts of an artificial capacity of one device. Their work is compared with running them one after the
other without gemlet; each checks its bytes in the end, and a wrong one fails the benchmark. Managed memory is not used:
no real card shall have too much of it. The rows of `dead` need PyTorch (--python names an interpreter that has it). The
simulated machine has another bandwidth, and no PyTorch: there the rows check the mechanism only.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, ClassVar

from bench.machine import Client, Happening, Sharing
from bench.movement import GIB, Watch
from bench.runner import Bench, main
from bench.swap_torch import DeadCache

if TYPE_CHECKING:
    import argparse

    from bench.movement import HandOver, Moved

MIB = 1 << 20
KERNEL_US = 1000.0
IDLE_LINK = 40.0  # GB/s: the least rate at which a program that comes back must be brought in
SOON = 50.0  # ms: everything else until its first kernel is done


class SwapBench(Bench):
    name: ClassVar[str] = "swap"
    scenarios: ClassVar[list[str]] = [
        "link", "alone", "one_way", "fits", "sixty", "ninety", "ninety_short", "half_on_cpu", "three", "clean",
        "declared", "arrival", "dead",
    ]  # fmt: skip
    seconds: ClassVar[float] = 30.0  # of the longest row; planned for six minutes in all on a GPU

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--capacity-gib", type=float, help="artificial capacity of the device (16; simulated: 0.5)")
        parser.add_argument("--quick", action="store_true", help="a quarter of the time, shorter epochs: a first look")
        parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")

    def chose(self, options: argparse.Namespace) -> None:
        simulate = self.machine.simulate
        self.capacity = int((options.capacity_gib or (0.5 if simulate else 16.0)) * GIB)
        # 1: as on a GPU. The simulated machine's programs are small and its bytes are copied by a CPU.
        self.pace = 0.25 if options.quick or simulate else 1.0
        self.length *= self.pace
        self.python = options.python
        self.report.about["capacity_gib"] = self.capacity / GIB
        # Writing it all, and pinning the host's side of it (0.3 s a GiB), is over before the clock starts.
        self.start_limit = 60 + 3 * self.capacity / GIB
        self.enough = self.capacity // 8  # bytes one way: less than this says little about a rate
        self.carries: dict[str, float] = {}  # GB/s of the link, and ms per GiB of pinning, once measured
        self.one_ways: list[float] = []  # GB/s of hand-overs in one direction only

    # --- programs ----------------------------------------------------------------------------------------------------

    def memory(self, part: float) -> list[str]:
        return ["--memory-mib", str(int(self.capacity * part) // MIB)]

    def busy(self, part: float, *, cpu: float = 0.0, dirty: bool = True, dead: float = 0.0) -> list[str]:
        """Always has work: batches of 5 ms, at most two under way, which is what is in flight when it has to stop.

        dirty: within seconds all of its memory is other than it was. dead: that part is of no use between batches.
        """
        work = ["work", "--kernel-us", str(KERNEL_US), "--batch", "5", "--depth", "2", *self.spin()]
        phases = ["--cpu", str(cpu), "--phase", str(self.phase())] if cpu else []
        # The simulated machine writes with the host's CPU.
        rewrite = ["--rewrite-mib", "1" if self.machine.simulate else "64"] if dirty else []
        return [*work, *self.memory(part), *phases, *rewrite, *(["--dead", str(dead)] if dead else [])]

    def now_and_then(self, part: float, every: float) -> list[str]:
        """One kernel each ``every`` seconds, which leaves all of the memory changed."""
        kernel = ["burst", "--kernel-us", str(KERNEL_US), "--batch", "1", *self.spin()]
        return [*kernel, "--rate", str(1 / every), *self.memory(part), "--rewrite-mib", "256"]

    def spin(self) -> list[str]:
        return self.machine.spin(KERNEL_US)

    def phase(self) -> float:
        return max(self.length / 15, 0.5)

    # --- running them ------------------------------------------------------------------------------------------------

    def shared(
        self,
        clients: list[Client],
        seconds: float,
        *,
        epoch: float | None = None,
        happenings: tuple[Happening, ...] = (),
    ) -> Watch:
        """Runs them on a device with the capacity. ``epoch``: longest, in s. Raises RuntimeError for wrong bytes."""
        with self.device(epoch) as sharing, self.watch(sharing) as watch:
            for name in {c.group for c in clients if c.group}:
                sharing.group(name)
            self.machine.run(clients, sharing, seconds, happenings, start_limit=self.start_limit)
        right(clients)
        for hand_over in watch.hand_overs:
            self.report.put("hand_overs", hand_over.as_dict())
        return watch

    def device(self, epoch: float | None = None, capacity: int | None = None) -> Sharing:
        """A server whose device has the capacity."""
        options: dict[str, int | float] = {}
        if epoch is not None:
            options = {"epoch_min": int(min(0.5, epoch) * 1e9), "max_wait": int(epoch * 1e9)}
        sharing = Sharing(self.machine, **options)
        uuid = bytes.fromhex(str(self.machine.output(["uuid"], self.machine.env)["uuid"]))
        # The capacity is for what can move: nobody asks NVML here what contexts take, so they count for a byte each.
        sharing.server.add_device(uuid, 0, context_estimate=1)
        sharing.server.set_capacity(uuid, capacity or self.capacity)
        return sharing

    def watch(self, sharing: Sharing) -> Watch:
        # A busy host that copies the simulated machine's bytes pauses now and then.
        return Watch(sharing, every=0.01, apart=1.0) if self.machine.simulate else Watch(sharing)

    def native(self, args: list[str], seconds: float, count: int = 1) -> float:
        """Seconds of work a second that ``count`` such programs complete in all without gemlet."""
        clients = [Client(args) for _ in range(count)]
        self.machine.run(clients, None, seconds, start_limit=self.start_limit)
        right(clients)
        return sum(c.result["work_s"] for c in clients) / seconds

    def together(
        self, what: str, count: int, part: float, target: str, seconds: float, *, cpu: float = 0.0, epoch: float | None
    ) -> Watch:
        """A row: work of ``count`` programs of ``part`` of the capacity over one after the other."""
        args = self.busy(part, cpu=cpu)
        # Whole phases, where there are any.
        alone = self.native(args, self.phase() / (1 - cpu) * 2 if cpu else min(5.0, seconds))
        clients = [Client(args, f"g{i}") for i in range(count)]
        epoch = epoch and epoch * self.pace
        watch = self.shared(clients, seconds, epoch=epoch)
        work = [c.result["work_s"] for c in clients]
        note = f"{watch.bytes / GIB:.1f} GiB moved in {len(watch.hand_overs)} hand-overs"
        if epoch:
            what += f", epochs <= {epoch:g} s"
        self.report.add(f"{what}: work / one after the other", sum(work) / seconds / alone, target, note=note)
        return watch

    # --- scenarios ---------------------------------------------------------------------------------------------------

    def link(self) -> None:
        """What the link between device and host carries, in pieces of 64 MiB from pinned memory."""
        mib = 256 if self.machine.simulate else 2048
        self.carries = self.machine.output(["link", "--memory-mib", str(mib)], self.machine.env)
        for way, text in (("out", "device to host"), ("in", "host to device"), ("both", "both ways at a time")):
            self.report.add(f"link: {text}, GB/s", self.carries[way])
        for what, text in (("touch", "touched the first time by one thread"), ("pin", "pinned then")):
            self.report.add(f"host memory {text}: ms per GiB", self.carries[what])

    def alone(self) -> None:
        """One program, which fits: nothing moves, and it is as fast as without gemlet."""
        args, seconds = self.busy(0.9), max(2.0, self.length / 12)
        rates, bytes_moved = [], 0
        for _ in range(3):
            native = self.native(args, seconds)
            client = Client(args, "a")
            bytes_moved += self.shared([client], seconds).bytes
            rates.append(client.result["work_s"] / seconds / native)
        self.report.add("1 of 90 %: work / without gemlet", statistics.median(rates), ">= 0.99")
        self.report.add("1 of 90 %: bytes moved", bytes_moved, "<= 0")

    def one_way(self) -> None:
        """One leaves for a newcomer, whose memory is fresh, and comes back when that one has ended. Twice."""
        away, stay = 7.0, 1.5  # seconds: whatever the pace, a program takes a while to start
        client = Client(self.now_and_then(0.9, away), "a")
        newcomer = [*self.busy(0.9, dirty=False), "--seconds", str(stay)]
        visitors: list[Client] = []

        def visit() -> None:
            visitors.append(Client(newcomer, result=self.machine.once(newcomer, sharing, "b")))

        with self.device() as sharing, self.watch(sharing) as watch:
            for name in ("a", "b"):
                sharing.group(name)
            visits = [Happening(stay, visit), Happening(stay + away, visit)]
            self.machine.run([client], sharing, 3 * away + 1, visits, start_limit=self.start_limit)
        right([client, *visitors])
        large = watch.large(self.enough)
        for hand_over in large:
            self.report.put("hand_overs", hand_over.as_dict())
        self.direction("out", "device to host", [(h.out, h.out_seconds) for h in large if h.into == 0])
        self.direction("in", "host to device", [(h.into, h.into_seconds) for h in large if h.out == 0])

    def direction(self, way: str, text: str, seen: list[tuple[int, float]]) -> None:
        """Rows of the last hand-over; the first one also pins the host's side."""
        if not seen:
            raise RuntimeError(f"nothing moved from {text} alone")
        first, last = (seconds * 1e3 / (moved / GIB) for moved, seconds in (seen[0], seen[-1]))
        moved, seconds = seen[-1]
        rate = moved / seconds / 1e9
        self.one_ways.append(rate)
        note = f"{moved / GIB:.1f} GiB; the first time {first:.0f}"
        self.report.add(f"hand-over, {text}: ms per GiB", last, "<= 25", note=note)
        if self.carries:
            self.report.add(f"hand-over, {text}: rate / link", rate / self.carries[way], ">= 0.85")

    def fits(self) -> None:
        """Two that fit: nothing moves, and they share as without gemlet."""
        args, seconds = self.busy(0.4), max(2.0, self.length / 5)
        unmanaged = self.native(args, seconds, count=2)
        clients = [Client(args, name) for name in "ab"]
        watch = self.shared(clients, seconds)
        work = sum(c.result["work_s"] for c in clients) / seconds
        self.report.add("2 of 40 %: work / both at a time without gemlet", work / unmanaged, ">= 0.98")
        self.report.add("2 of 40 %: bytes moved", watch.bytes, "<= 0")

    def sixty(self) -> None:
        self.together("2 of 60 %", 2, 0.6, ">= 0.97", self.length * 2 / 3, epoch=10)

    def ninety(self) -> None:
        watch = self.together("2 of 90 %", 2, 0.9, ">= 0.95", self.length, epoch=10)
        both = [h for h in watch.large(self.enough) if min(h.out, h.into) >= self.enough]
        if not both:
            raise RuntimeError("no hand-over in which memory of both moved")
        self.overlapped(both)

    def overlapped(self, both: list[HandOver]) -> None:
        rate = statistics.median(h.rate for h in both)
        what = "hand-over, one out while the other comes in"
        self.report.add(f"{what}: GB/s, both ways", rate, note=f"median of {len(both)}")
        for text, way in (
            ("out", [(h.out, h.out_seconds) for h in both]),
            ("in", [(h.into, h.into_seconds) for h in both]),
        ):
            ms = statistics.median(seconds * 1e3 / (moved / GIB) for moved, seconds in way)
            self.report.add(f"{what}: ms per GiB {text}", ms, "<= 25")
        if self.one_ways:
            self.report.add(f"{what}: rate / one way", rate / statistics.mean(self.one_ways), ">= 1.5")
        if self.carries:
            self.report.add(f"{what}: rate / link both ways", rate / self.carries["both"], ">= 0.85")

    def ninety_short(self) -> None:
        self.together("2 of 90 %", 2, 0.9, ">= 0.9", self.length * 0.6, epoch=5)

    def half_on_cpu(self) -> None:
        self.together(
            "2 of 90 %, half of the time on the CPU", 2, 0.9, ">= 1.35", self.length * 2 / 3, cpu=0.5, epoch=None
        )

    def three(self) -> None:
        """Beside their contexts no two of them fit. Over whole rounds: each has had as many epochs as the others."""
        args = self.busy(0.5)
        alone = self.native(args, min(5.0, self.length / 6))
        clients = [Client(args, f"g{i}") for i in range(3)]
        # A device frees one place with each epoch, and two wait: the last of them for two epochs.
        watch = self.shared(clients, self.length, epoch=2 * 3 * self.pace)
        # Checked: memory that comes in after the end, outside any epoch.
        comings = [at for at in watch.comings("g0", self.machine.started_ns) if at < self.length]
        if len(comings) < 2:
            raise RuntimeError("no program came back twice")
        begin, end = comings[0], comings[-1]
        work = [c.work_between(begin, end) for c in clients]
        what = "3 of 50 %, epochs <= 3 s"
        note = f"{watch.bytes / GIB:.1f} GiB moved in all, {end - begin:.1f} s looked at"
        self.report.add(f"{what}: work / one after the other", sum(work) / (end - begin) / alone, ">= 0.95", note=note)
        self.report.add(f"{what}: largest / smallest share", max(work) / max(min(work), 1e-9), "<= 1.1")

    def clean(self) -> None:
        """Weights: written once, read ever after. What left once need not be copied out again."""
        moved = self.second_half(dirty=False)
        self.report.add(
            "unchanged memory: copied out / left, after it has left once", moved.out / moved.into, "<= 0.01",
            note=f"{moved.into / GIB:.1f} GiB left",
        )  # fmt: skip

    def declared(self) -> None:
        """Scratch that the programs declare dead after each batch, as the hook for PyTorch does."""
        moved = self.second_half(dead=0.85)
        left = moved.out + moved.dropped
        self.report.add(
            "85 % declared dead: part that is copied out", moved.out / left, "<= 0.2",
            note=f"{left / GIB:.1f} GiB left",
        )  # fmt: skip

    def second_half(self, *, dirty: bool = True, dead: float = 0.0) -> Moved:
        """What two of 90 % move in short epochs once each has been away: as much comes back as leaves."""
        seconds = max(8.0, self.length / 3)
        clients = [Client(self.busy(0.9, dirty=dirty, dead=dead), name) for name in "ab"]
        watch = self.shared(clients, seconds, epoch=1.0)
        moved = watch.after(self.machine.started_ns + int(seconds / 2 * 1e9))
        if moved.into == 0:
            raise RuntimeError("no program left the device twice")
        return moved

    def arrival(self) -> None:
        """How long the first kernel takes when a program comes back; two that are idle most of the time take turns."""
        every = 4.0  # seconds: a program counts as idle after two hand-overs
        program = self.now_and_then(0.6 if self.machine.simulate else 0.9, every)
        clients = [Client(program, "a"), Client(program, "b", every / 2)]
        watch = self.shared(clients, every * 6.5)
        late, all_of_it = [], []
        for client in clients:
            assert client.group
            # The first finds its memory there; for the second the other left for the first time, which pins memory.
            came = watch.of(client.group).into / max(1, len(client.latencies_us) - 1)
            took = [us / 1e3 - KERNEL_US / 1e3 for us in client.latencies_us[2:]]
            late += [ms - came / IDLE_LINK / 1e6 for ms in took]
            all_of_it += took
        self.report.add(
            "back after an eviction: ms to the first kernel beyond bytes / 40 GB/s, worst", max(late), f"<= {SOON:g}",
            note=f"worst {max(all_of_it):.0f} ms in all, {watch.bytes / GIB:.1f} GiB moved",
        )  # fmt: skip

    def dead(self) -> None:
        DeadCache(self).measure()


def right(clients: list[Client]) -> None:
    """Raises RuntimeError if a program found other bytes than it had written."""
    wrong = sum(int(c.result.get("wrong", 0)) for c in clients)
    if wrong:
        raise RuntimeError(f"{wrong} words are not what was written")


if __name__ == "__main__":
    raise SystemExit(main(SwapBench, __doc__ or ""))
