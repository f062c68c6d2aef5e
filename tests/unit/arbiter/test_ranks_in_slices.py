"""Ranks that the hardware's slices serve well on one device and badly on another, or worse than slots do."""

from __future__ import annotations

from dataclasses import dataclass

from gemlet import _native as native

MS = 1_000_000


@dataclass(frozen=True)
class Pace:
    """What a rank completes of the time that it runs, and the part of the looks that find work and find its host
    waiting."""

    done: float
    busy: float = 1.0


class Machine:
    """``jobs``: the devices of each; ``beside``: how ranks run beside others, by device."""

    def __init__(self, jobs: dict[int, tuple[int, ...]], beside: dict[int, Pace], alone: Pace) -> None:
        self.now = 0
        self.beside, self.alone = beside, alone
        self.gangs = native.Gangs()
        self.devices = [native.Arbiter("fair") for _ in beside]
        self.running: list[dict[int, int]] = [{} for _ in beside]  # deadlines
        self.windows: dict[int, int] = {}  # bounds on what each job has in flight on device 0, in ns
        self.counts = {(job, device): [0.0] * 4 for job, on in jobs.items() for device in on}
        for device in self.devices:
            self.gangs.add(device)
        for job, on in jobs.items():
            self.gangs.tie(f"job{job}")
            for device in on:
                arbiter = self.devices[device]
                arbiter.add_client(job, arbiter.set_group(f"job{job}", 0), 0)
        for job, device in self.counts:
            self.devices[device].request(job, 0)
        self.settle()

    def settle(self) -> None:
        self.gangs.settle(self.now)
        for running, arbiter in zip(self.running, self.devices, strict=True):
            for kind, client, deadline, window, *_ in arbiter.take_actions():
                if kind in {"grant", "update", "revoke"}:
                    running[client] = deadline
                    if arbiter is self.devices[0]:
                        self.windows[client] = window

    def step(self) -> None:
        """A millisecond."""
        self.now += MS
        for device, running in enumerate(self.running):
            pace = self.beside[device] if len(running) > 1 else self.alone
            for job in running:
                more = pace.done * MS, 10.0, 10.0, 10.0 * pace.busy
                count = self.counts[job, device] = [a + b for a, b in zip(self.counts[job, device], more, strict=True)]
                work, launches, samples, busy = map(int, count)
                self.devices[device].progress(job, work, launches, samples, busy, busy)
        for arbiter in self.devices:
            arbiter.tick(self.now)
        self.settle()
        for device, running in enumerate(self.running):
            for job in [job for job, end in running.items() if end <= self.now]:
                del running[job]
                self.devices[device].stopped(job, "deadline", 0, self.now)
                self.devices[device].drained(job, self.now, self.now)
                self.settle()
                self.devices[device].request(job, self.now)
                self.settle()

    @property
    def sliced(self) -> bool:
        return any(len(running) > 1 for running in self.running)


def test_a_gang_that_slices_serve_well_takes_turns_with_those_that_must() -> None:
    """Before, it ran beside the ranks of others in their slots, in slices, and they waited for each other."""
    jobs = {1: (0, 1), 2: (1, 2), 3: (0, 2)}
    # 0.945 of a device, both together, is enough.
    machine = Machine(jobs, {0: Pace(0.44), 1: Pace(0.49), 2: Pace(0.49)}, Pace(0.99))
    sliced = 0
    contend = False
    for _ in range(1000):
        machine.step()
        contend |= machine.devices[0].usage(machine.now)[0]["why"] != "shares"
        if machine.now > 300 * MS:
            sliced += machine.sliced
    assert contend
    assert sliced <= 50  # ms: at the ends of slots


def test_ranks_that_got_less_done_in_slices_are_seldom_tried_again() -> None:
    """Jobs of short all-reduces leave their devices idle most of the time, in slots. Together they would fit, but
    each all-reduce takes as long as it takes until slices meet. Before, they were released again and again."""
    both = {1: (0, 1), 2: (0, 1)}
    machine = Machine(both, {0: Pace(0.02), 1: Pace(0.02)}, Pace(0.25, busy=0.3))
    sliced = 0
    windows = []
    for _ in range(20_000):
        machine.step()
        sliced += machine.sliced
        if len(machine.running[0]) > 1:
            windows.append(machine.windows[1])
    assert 0 < sliced <= 2_500
    # What they have in flight when a trial fails drains in slices, so after the first there is little.
    assert windows[0] > 1 * MS
    assert windows[-1] < 1 * MS
