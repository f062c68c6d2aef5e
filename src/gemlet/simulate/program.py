"""What a program does, step by step: the host side of a client, which knows nothing of the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemlet.config.quantities import SECOND
from gemlet.simulate.queue import ENDLESS

if TYPE_CHECKING:
    import random
    from collections.abc import Generator

    from gemlet.simulate.workload import ProgramSpec

# Longer pauses between two launches may end a turn: each such launch is a step of its own.
LONGEST_GAP = 80_000
PREFILL_KERNEL = 100_000


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches kernels at regular times; no more of them from ``until`` on."""

    count: int
    kernel: int
    gap: int
    until: int | None = None
    meets: bool = False  # the first of them is a collective: it waits on the device for the other ranks'


@dataclass(frozen=True, slots=True)
class Sync:
    """Waits for all launched work."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Uses nothing until then. ``active``: it works on the host, and will go on."""

    until: int
    active: bool


Step = Launch | Sync | Pause
SYNC = Sync()


class Program:
    """The steps of one client. ``latencies`` holds how long each job, request or iteration took."""

    def __init__(self, spec: ProgramSpec, chance: random.Random) -> None:
        self.spec = spec
        self._chance = chance
        self.latencies: list[int] = []
        self.requested: list[int] = []  # when, for each of them

    def steps(self, now: int) -> Generator[Step, int, None]:
        """Takes the time at which the last step ended, gives the next one."""
        makers = {
            "saturating": self._saturating,
            "launch-bound": self._launch_bound,
            "changing": self._changing,
            "think": self._thinks,
            "bursty": self._bursty,
            "onoff": self._on_and_off,
            "poisson": self._requests,
            "answers": self._requests,
            "periodic": self._requests,
            "ranks": self._rank,
        }
        return makers[self.spec.kind](now)

    def _work(self, amount: int) -> Generator[Step, int, int]:
        count = max(1, -(-amount // self.spec.kernel))
        yield Launch(count, -(-amount // count), self.spec.launch)
        return (yield SYNC)

    def _took(self, since: int, now: int) -> None:
        self.requested.append(since)
        self.latencies.append(now - since)

    def _saturating(self, now: int) -> Generator[Step, int, None]:
        yield Launch(ENDLESS, self.spec.kernel, self.spec.launch)

    def _launch_bound(self, now: int) -> Generator[Step, int, None]:
        yield from self._iterate(now, None)

    def _rank(self, now: int) -> Generator[Step, int, None]:
        spec = self.spec
        while True:
            begun = now
            for _ in range(spec.layers):
                yield Launch(spec.kernels, spec.kernel, spec.gap)
                now = yield Launch(1, spec.collective, spec.gap, meets=True)
            if spec.host:
                now = yield SYNC
                more = spec.uneven * self._chance.random() if spec.uneven else 0.0
                now = yield Pause(now + round(spec.host * (1.0 + more)), True)
            self._took(begun, now)

    def _iterate(self, now: int, until: int | None) -> Generator[Step, int, int]:
        spec = self.spec
        done = 0
        while until is None or now < until:
            begun = now
            if spec.prefill and done % spec.steps == 0:
                now = yield from self._prefill()
            done += 1
            now = yield from self._launch_and_wait()
            self._took(begun, now)
        return now

    def _launch_and_wait(self) -> Generator[Step, int, int]:
        spec = self.spec
        if spec.gap <= LONGEST_GAP:
            yield Launch(spec.kernels, spec.kernel, spec.gap)
        else:
            for _ in range(spec.kernels):
                now = yield Launch(1, spec.kernel, spec.gap)
                yield Pause(now + spec.gap, True)
        now = yield SYNC
        if spec.host:
            now = yield Pause(now + spec.host, True)
        return now

    def _prefill(self) -> Generator[Step, int, int]:
        yield Launch(-(-self.spec.prefill // PREFILL_KERNEL), PREFILL_KERNEL, self.spec.launch)
        return (yield SYNC)

    def _bursty(self, now: int) -> Generator[Step, int, None]:
        while True:
            begun = now
            now = yield from self._work(self.spec.work)
            self._took(begun, now)
            now = yield Pause(now + self.spec.think, False)

    def _requests(self, now: int) -> Generator[Step, int, None]:
        arrival = now if self.spec.kind == "periodic" else now + self._gap()
        while True:
            if arrival > now:
                yield Pause(arrival, False)
            now = yield from self._answer() if self.spec.kind == "answers" else self._work(self.spec.work)
            self._took(arrival, now)
            arrival += self._gap()

    def _answer(self) -> Generator[Step, int, int]:
        now = yield from self._prefill()
        for _ in range(self.spec.steps):
            now = yield from self._launch_and_wait()
        return now

    def _on_and_off(self, now: int) -> Generator[Step, int, None]:
        on, off = self.spec.on, self.spec.off
        while True:
            yield Launch(ENDLESS, self.spec.kernel, self.spec.launch, now + on)
            now += on + off
            yield Pause(now, False)

    def _thinks(self, now: int) -> Generator[Step, int, None]:
        while True:
            now = yield from self._iterate(now, now + self.spec.on)
            now = yield Pause(now + self.spec.off, False)

    def _changing(self, now: int) -> Generator[Step, int, None]:
        end = now
        while True:
            end += self.spec.every
            now = yield from self._iterate(now, end)
            end += self.spec.every
            now = yield Launch(ENDLESS, self.spec.kernel, self.spec.launch, end)
            now = yield SYNC

    def _gap(self) -> int:
        if self.spec.kind == "periodic":
            return max(1, round(SECOND / self.spec.rate))
        return max(1, round(self._chance.expovariate(self.spec.rate) * SECOND))
