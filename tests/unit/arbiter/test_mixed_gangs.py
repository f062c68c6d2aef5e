"""Gangs that cross, where ranks contend on one device and slices serve them well on the others."""

from __future__ import annotations

from gemlet import _native as native

MS = 1_000_000
JOBS = {1: (0, 1), 2: (1, 2), 3: (0, 2)}  # and their devices
DONE = {0: 0.44, 1: 0.49, 2: 0.49}  # of its time, by each of two ranks beside each other: 0.945 together is enough


class Machine:
    def __init__(self) -> None:
        self.now = 0
        self.gangs = native.Gangs()
        self.devices = [native.Arbiter("fair") for _ in DONE]
        self.running: list[dict[int, int]] = [{} for _ in DONE]  # deadlines
        self.counts = {(job, device): [0, 0, 0] for job, on in JOBS.items() for device in on}
        for device in self.devices:
            self.gangs.add(device)
        for job, on in JOBS.items():
            self.gangs.tie(f"job{job}")
            for device in on:
                arbiter = self.devices[device]
                arbiter.add_client(job, arbiter.set_group(f"job{job}", 0), 0)
        for job, on in JOBS.items():
            for device in on:
                self.devices[device].request(job, 0)
        self.settle()

    def settle(self) -> None:
        self.gangs.settle(self.now)
        for running, arbiter in zip(self.running, self.devices, strict=True):
            for kind, client, deadline, *_ in arbiter.take_actions():
                if kind in {"grant", "update", "revoke"}:
                    running[client] = deadline

    def step(self) -> None:
        """A millisecond, in which all that run always have work queued and their hosts wait for it."""
        self.now += MS
        for device, running in enumerate(self.running):
            for job in running:
                count = self.counts[job, device]
                count[0] += round((DONE[device] if len(running) > 1 else 0.99) * MS)
                count[1] += 10
                count[2] += 10
                self.devices[device].progress(job, *count, count[2], count[2])
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


def test_a_gang_that_slices_serve_well_takes_turns_with_those_that_must() -> None:
    """Before, it ran beside the ranks of others in their slots, in slices, and they waited for each other."""
    machine = Machine()
    beside = 0
    contend = False
    for _ in range(1000):
        machine.step()
        contend |= machine.devices[0].usage(machine.now)[0]["why"] != "shares"
        if machine.now > 300 * MS:
            beside += any(len(running) > 1 for running in machine.running)
    assert contend
    assert beside <= 50  # ms: at the ends of slots
