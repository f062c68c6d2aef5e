"""When a program has work for the device, and how much: the host side of a client."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gemlet.config.quantities import SECOND

if TYPE_CHECKING:
    import random

    from gemlet.simulate.workload import ProgramSpec

ENDLESS = 1 << 60


class Program:
    """A queue of jobs for the device, filled by time (arrivals) or by completion (the next iteration)."""

    def __init__(self, spec: ProgramSpec, chance: random.Random) -> None:
        self.spec = spec
        self._chance = chance
        self._jobs: deque[list[int]] = deque()  # [ready at, work left]
        self.latencies: list[int] = []

    @property
    def work_left(self) -> int:
        """Of the present job; 0 if there is none."""
        return self._jobs[0][1] if self._jobs else 0

    def first_arrival(self) -> int:
        return self.spec.arrive + (self._gap() if self.spec.kind == "poisson" else 0)

    def arrive(self, now: int) -> int | None:
        """A job becomes ready; when the next one does, if that does not depend on this one's end."""
        endless = self.spec.kind in {"saturating", "onoff"}
        self._jobs.append([now, ENDLESS if endless else self.spec.work])
        return now + self._gap() if self.spec.kind in {"poisson", "periodic"} else None

    def did(self, amount: int) -> None:
        """The device worked on the present job."""
        if self._jobs:
            self._jobs[0][1] = max(0, self._jobs[0][1] - amount)

    def complete(self, now: int) -> int | None:
        """The present job is done; when the next one becomes ready, if this one's end decides that."""
        ready, _ = self._jobs.popleft()
        self.latencies.append(now - ready)
        return now + self.spec.think if self.spec.kind == "bursty" else None

    def pause(self) -> None:
        """An on/off program's off time begins: it drops its endless job."""
        self._jobs.clear()

    def _gap(self) -> int:
        if self.spec.kind == "periodic":
            return max(1, round(SECOND / self.spec.rate))
        return max(1, round(self._chance.expovariate(self.spec.rate) * SECOND))
