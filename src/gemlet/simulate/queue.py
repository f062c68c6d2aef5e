"""The work of one context: kernels launched at regular times, and how far the device is with them.

Everything between two events is arithmetic: launches come at regular times, the device works at a constant rate. A
thousand kernels cost no more than one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

ENDLESS = 1 << 60

# quiet: nothing is launched. flow: launches at regular times. full: as flow, but the host waits for room in the window.
Mode = Literal["quiet", "flow", "full"]


def _ceil(value: float) -> int:
    return -int(-value // 1)


def _later(at: int, by: float) -> int:
    """The moment after ``at`` when ``by`` has passed. What is too little to be seen in a sum passes, too."""
    return max(at + 1, _ceil(at + by))


class Queue:
    """Launches and executed work, in nanoseconds of work on an idle device. ``settle`` brings it up to a moment."""

    __slots__ = (
        "_base",
        "_meets",
        "_record",
        "_stops",
        "at",
        "busy",
        "done",
        "gap",
        "given",
        "kernel",
        "launches",
        "left",
        "limit",
        "mode",
        "next",
        "rate",
        "window",
    )

    def __init__(self, record: Callable[[int, int, float, float], None]) -> None:
        self._record = record  # from, to, work, rate
        self.at = 0
        self.rate = 0.0
        self.mode: Mode = "quiet"
        self.kernel = self.gap = 1
        self.left = 0  # kernels to be launched yet
        self.limit = 0  # how many of these need no decision
        self.next = 0  # when the next one is launched; flow
        self.window: float = ENDLESS
        self.launches = 0
        self.given: float = 0
        self.done: float = 0
        self.busy: float = 0  # time with work queued or running
        self._base: float = 0  # work given before the present kernels
        self._meets = False  # the next kernel waits for others when it begins
        self._stops: deque[float] = deque()  # where launched kernels will do so

    def launch(self, count: int, kernel: int, gap: int, now: int, *, meets: bool = False) -> None:
        """``count`` kernels, from now on.

        ``meets``: the first of them waits for `meet` when it begins, and again before its end.
        """
        self._meets = meets
        self.left = self.limit = count
        self.kernel, self.gap, self.next, self.mode = kernel, max(1, gap), now, "flow"
        self._base = self.given

    def abandon(self) -> None:
        """Nothing of it will be done."""
        self.mode, self.left = "quiet", 0
        self.given = self.done
        self._stops.clear()

    @property
    def backlog(self) -> float:
        return self.given - self.done

    @property
    def meets(self) -> bool:
        """Whether its kernel runs, and waits for others: it gets no further however long it runs."""
        return bool(self._stops) and self.done >= self._stops[0]

    @property
    def pace(self) -> float:
        """Work done in a nanosecond, as things are."""
        return 0.0 if self.meets else self.rate

    def meet(self) -> None:
        """The others are there, too."""
        self._stops.popleft()

    def meets_at(self) -> int | None:
        """When it comes to a kernel that waits for others; None if there is none, or it does not run."""
        if not self._stops or self.rate <= 0 or self.meets:
            return None
        return _later(self.at, (self._stops[0] - self.done) / self.rate)

    @property
    def completed(self) -> float:
        """Work of complete kernels."""
        if self.done <= self._base or self.done >= self.given:
            return self.done
        return self.done - (self.done - self._base) % self.kernel

    def settle(self, now: int) -> float:
        """Up to ``now``; for how much of the time work was queued or ran."""
        span = now - self.at
        if span <= 0 and not (self.mode == "flow" and self.next <= now):
            return 0.0
        if self.mode == "flow":
            busy = self._flow(now, span)
        elif self.mode == "full":
            busy = self._follow(span)
        else:
            busy = self._drain(span)
        self.at = now
        self.busy += busy
        return busy

    def _flow(self, now: int, span: int) -> float:
        before, count = self.given, 0
        if now >= self.next:
            count = min(self.limit, (now - self.next) // self.gap + 1)
        first = max(self.next, self.at)
        if count:
            last = self.next + (count - 1) * self.gap
            self._give(count)
            self.next += count * self.gap
        if self.pace <= 0:
            if before > self.done:
                return span
            return now - first if count else 0.0
        done = min(self.done + self.rate * span, self.given)
        if count:
            done = min(done, before + self.rate * (now - first), self.given - self.kernel + self.rate * (now - last))
        done = max(done, self.done)
        return self._did(now, done)

    def _give(self, count: int) -> None:
        if self._meets and count:
            # Data goes round: none of them ends before all have sent theirs.
            self._stops += (self.given, self.given + self.kernel - 1)
            self._meets = False
        self.given += count * self.kernel
        self.launches += count
        self.left -= count
        self.limit -= count

    def _follow(self, span: int) -> float:
        if self.pace <= 0:
            return float(span)
        done = self.done + self.rate * span
        if self.gap < self.kernel:
            room = done + self.window - self.given
            count = min(self.limit, int(room // self.kernel) + 1) if room >= 0 else 0
            self._give(count)
        return self._did(self.at + span, min(done, self.given))

    def _drain(self, span: int) -> float:
        if self.backlog <= 0:
            return 0.0
        if self.pace <= 0:
            return float(span)
        return self._did(self.at + span, min(self.done + self.rate * span, self.given))

    def _did(self, now: int, done: float) -> float:
        if self._stops:
            done = min(done, self._stops[0])
        amount = done - self.done
        self.done = done
        if amount > 0:
            self._record(self.at, now, amount, self.rate)
        return amount / self.rate

    # --- what comes, if nothing changes -----------------------------------------------------------------------------

    def empty_at(self) -> int | None:
        """The next moment without work; None if that never comes."""
        if self.pace <= 0:
            return self.at if self.backlog <= 0 else None
        if self.backlog <= 0:
            return self.at
        end = self.at + self.backlog / self.pace
        if self.mode == "flow" and self.limit:
            lag, gain = end - self.next, self.gap - self.kernel / self.pace
            if lag >= 0:
                count = min(self.limit, int(lag // gain) + 1) if gain > 0 else self.limit
                if count >= ENDLESS:
                    return None
                end += count * self.kernel / self.pace
        elif self.mode == "full":
            return None
        return max(self.at + 1, _ceil(end))

    def falls_to(self, level: float) -> int | None:
        """When no more than ``level`` is queued, if nothing more is launched."""
        if self.backlog <= level:
            return self.at
        return _later(self.at, (self.backlog - level) / self.pace) if self.pace > 0 else None

    def launches_that_fit(self) -> int:
        """How many of the coming launches find room in the window; flow."""
        waits = self.backlog
        growth: float = self.kernel
        if self.pace > 0:
            waits = max(waits - self.pace * (self.next - self.at), 0.0)
            growth = self.kernel - self.pace * self.gap
        if waits > self.window:
            return 0
        return int((self.window - waits) // growth) + 1 if growth > 0 else ENDLESS

    def launches_before(self, end: int) -> int:
        """How many of the coming launches are complete soon enough for another to begin before ``end``; flow."""
        if self.pace <= 0:
            return max(0, _ceil((end - self.next - self.backlog) / (self.gap + self.kernel)))
        counts = (
            (end - self.at - self.backlog) / self.kernel,
            (end - self.next) / self.gap,
            (end - self.next) / self.kernel,
        )
        return max(0, _ceil(min(counts)))

    def room_at(self, index: int = 0) -> int | None:
        """When there is room in the window for the launch of this number; full."""
        ahead = self.given + index * self.kernel - self.window - self.done
        if ahead <= 0:
            return self.at
        return _later(self.at, ahead / self.pace) if self.pace > 0 else None
