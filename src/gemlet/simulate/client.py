"""One client: its program on the host, and the hook, which asks for the token and counts what the arbiter is told."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from gemlet._native import NEVER
from gemlet.simulate.counters import Bins, Counters
from gemlet.simulate.program import Launch, Pause, Program, Sync
from gemlet.simulate.queue import ENDLESS, Queue

if TYPE_CHECKING:
    from gemlet.simulate.collective import Ranks
    from gemlet.simulate.program import Step

LATENCY_WINDOW = 100_000  # ns; kLatencyWindow of native/hook/submit/pacer.h
COUNTED_WINDOW = 2_000_000  # ns; kMidTurn of native/hook/submit/launch.cpp
LEAD = 400_000  # the end of a turn is reported when no more than this is in flight; native/server/server.hpp
SHORT_PAUSE = 500_000  # pauses that are shorter on average do not end a turn ...
PAUSES = 8  # ... over about this many of the last

Token = Literal["none", "waiting", "runs", "parked"]
Reason = Literal["deadline", "idle", "revoked", "exit"]


class Ears(Protocol):
    """What a client tells, at the present moment."""

    def request(self, client: Client) -> None:
        """It requests the token."""

    def took(self, client: Client) -> None:
        """It took its parked token."""

    def stopped(self, client: Client, reason: Reason, tail: int, *, wants: bool) -> None:
        """It submits no more."""

    def drained(self, client: Client) -> None:
        """What it had submitted is complete."""

    def worked(self, client: Client, start: int, end: int, rate: float) -> None:
        """The device worked for it."""

    def plan(self, client: Client) -> None:
        """Its next event must be found anew."""


class Terms(NamedTuple):
    """Of a turn."""

    deadline: int
    window: int
    idle: int
    idle_most: int
    poll: int
    submissions: int  # after so many it ends; 0: for no such reason


class Client:
    """Driven by the engine: ``wake`` at the moment that ``next_event`` names, and whatever the arbiter orders."""

    def __init__(
        self,
        number: int,
        group: str,
        program: Program,
        ears: Ears,
        *,
        reaction: int,
        duration: int,
        ranks: Ranks | None = None,
    ):
        self.number = number
        self.group = group
        self.program = program
        self.demand = program.spec.demand
        self.sm = 1.0
        self.watched = False
        self.version = 0
        self.token: Token = "none"
        self.waits: list[int] = []
        self.work = Bins(duration)  # done
        self.wanted = Bins(duration)  # time with something to do
        self.queue = Queue(self._record)
        self.present = False
        self._ears = ears
        self._reaction = reaction
        self._ranks = ranks
        self._meeting = 0  # the number of the next one
        self._arrived = False  # ... to which it has come
        self._frozen = False
        self._steps = program.steps(0)
        self._step: Step | None = None
        self._blocked = False  # waits for the token
        self._asked = 0
        # The terms of its turn.
        self._granted = 0
        self._first = 0  # launches when the turn began
        self._submissions = 0
        self._deadline = NEVER
        self._window: float = ENDLESS
        self._idle = self._idle_most = NEVER
        self._idle_since: int | None = None
        self._pause = 2.0 * SHORT_PAUSE
        self._draining = False
        self._told = False
        self._reason: Reason = "idle"
        self._counters = Counters(program.spec.lie, random.Random(number))

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """Everything up to ``now``."""
        queue = self.queue
        span, at = now - queue.at, queue.at
        busy = queue.settle(now)
        if span <= 0:
            return
        active = self._blocked or queue.mode != "quiet" or queue.backlog > 0 or busy > 0
        active = active or not isinstance(self._step, Pause) or self._step.active
        if self.present and active:
            self.wanted.add(at, now, span)
        if self.token == "runs":
            waits = isinstance(self._step, Sync) or queue.mode == "full"
            self._counters.add(at, now, busy, waits=waits)

    def _record(self, start: int, end: int, amount: float, rate: float) -> None:
        self.work.add(start, end, amount)
        self._ears.worked(self, start, end, rate)

    @property
    def own_rate(self) -> float:
        """How fast its kernels run on its own multiprocessors, with nobody beside; 1 is on all of them."""
        return min(1.0, self.sm / self.demand)

    def progress(self) -> tuple[int, int, int, int, int]:
        """Work, launches, samples, busy and awaited samples, as it says they are."""
        # What it takes to be a kernel's time is the time on its own multiprocessors.
        return self._counters.tell(int(self.queue.completed / self.own_rate), self.queue.launches)

    def changed(self) -> None:
        """Its plans are void."""
        self._ears.plan(self)

    def next_event(self) -> int | None:
        """When it has to be woken, if nothing else happens. Decides how many launches need no decision until then."""
        now = self.queue.at
        if self._frozen:
            end = self.queue.empty_at() if self.watched and self.queue.backlog > 0 else None
            return min((time for time in (self.queue.meets_at(), end) if time is not None), default=None)
        times = [*self._program_times(now), *self._turn_times(now), self.queue.meets_at()]
        if self.queue.meets and self.queue.rate > 0 and not self._arrived:
            times.append(now)
        return min((max(time, now) for time in times if time is not None), default=None)

    def _program_times(self, now: int) -> list[int | None]:
        queue, step = self.queue, self._step
        if queue.mode != "quiet":
            times = self._flow_times(now) if queue.mode == "flow" else self._full_times()
            return [*times, step.until] if isinstance(step, Launch) else times
        if isinstance(step, Sync):
            return [queue.falls_to(0)]
        return [step.until] if isinstance(step, Pause) else []

    def _flow_times(self, now: int) -> list[int | None]:
        queue, end = self.queue, self._end()
        limit = min(queue.left, queue.launches_that_fit())
        if end != NEVER:
            first = int(queue.launches == self._first)
            limit = min(limit, self._counted(), max(first, queue.launches_before(end - self._ahead())))
        queue.limit = limit
        times: list[int | None] = []
        if limit < ENDLESS // 2:
            last = limit - 1 if limit == queue.left else limit
            times.append(max(now, queue.next + last * queue.gap))
        if queue.backlog <= 0 and queue.rate <= 0 and limit:
            times.append(queue.next)
        return times

    def _full_times(self) -> list[int | None]:
        queue, end = self.queue, self._end()
        queue.limit = queue.left
        if queue.gap >= queue.kernel:
            return [queue.room_at()]
        times = [queue.room_at(queue.left - 1)] if queue.left < ENDLESS // 2 else []
        if end != NEVER and queue.pace > 0:
            times.append(self._last_moment(end))
        return times

    def _turn_times(self, now: int) -> list[int | None]:
        queue, end, runs = self.queue, self._end(), self.token == "runs"
        times: list[int | None] = []
        if runs and end != NEVER:
            spent = queue.pace > 0 and queue.mode == "quiet" and now + queue.backlog >= end
            slow = queue.backlog if queue.pace <= 0 else 0
            times.append(now if spent else int(end - slow))
        if runs and self._idles():
            since = self._idle_since if self._idle_since is not None else now
            times.append(since + self._grace())
        if queue.mode == "quiet" and ((runs and queue.backlog > 0) or self._draining):
            times.append(queue.falls_to(0))
        if self._draining and not self._told:
            times.append(queue.falls_to(LEAD))
        if self.watched and queue.backlog > 0:
            times.append(queue.empty_at())
        return times

    def _end(self) -> int:
        """When its turn ends, as it sees it."""
        if self.token != "runs" or self._deadline == NEVER:
            return NEVER
        return self._granted + round((self._deadline - self._granted) * self.program.spec.overrun)

    def _ahead(self) -> int:
        """A launch is submitted if so much of it ends in time."""
        kernel = self.queue.kernel
        return kernel if self._window <= LATENCY_WINDOW else kernel // 2

    def _counted(self) -> int:
        """How many launches its turn has room for, as far as they are counted."""
        return self._first + self._submissions - self.queue.launches if self._submissions else ENDLESS

    def _last_moment(self, end: int) -> int | None:
        """When it decides for the first time not to submit another kernel; full."""
        queue = self.queue
        begin = queue.room_at()
        if begin is None:
            return None
        left = (end - self._ahead() - self._window - begin) * queue.pace
        queue.limit = min(self._counted(), max(int(queue.launches == self._first), -int(-left // queue.kernel), 0))
        return queue.room_at(queue.limit)

    def _idles(self) -> bool:
        return self.queue.mode == "quiet" and self.queue.backlog <= 0 and isinstance(self._step, Pause)

    def _grace(self) -> int:
        return self._idle_most if self._pause < SHORT_PAUSE else self._idle

    # --- the program ------------------------------------------------------------------------------------------------

    def enter(self, now: int) -> None:
        """It attaches to the device."""
        self.settle(now)
        self.present = True
        self._steps = self.program.steps(now)
        self._begin(next(self._steps), now)
        self.wake(now)

    def exit(self, now: int) -> None:
        """It is gone, with all it had queued."""
        self.settle(now)
        self.present = False
        self.queue.abandon()
        self.token, self._blocked, self._draining = "none", False, False
        self._step = None
        self.changed()

    def wake(self, now: int) -> None:
        """Does what is due."""
        if not self.present:
            return
        self.settle(now)
        self._arrive(now)
        if self._frozen:
            self.changed()
            return
        self._follow_tail(now)
        self._watch(now)
        for _ in range(1000):
            if not self._host(now):
                break
            self._watch(now)
        self._note_idle(now)
        self.changed()

    def _arrive(self, now: int) -> None:
        if self._ranks is not None and self.queue.meets and self.queue.rate > 0 and not self._arrived:
            self._arrived = True
            self._ranks.arrive(self, self._meeting, now)

    def met(self, now: int) -> None:
        """The other ranks are there, too."""
        self.settle(now)
        self.queue.meet()
        self._meeting += 1
        self._arrived = False
        self.changed()

    def _begin(self, step: Step, now: int) -> None:
        self._step = step
        if isinstance(step, Launch):
            self.queue.launch(step.count, step.kernel, step.gap, now, meets=step.meets)
            self.queue.window = self._window
            self.queue.limit = 0
            self._launches(now)

    def _launches(self, now: int) -> None:
        """Its host is about to launch; it needs the token for it."""
        if self._idle_since is not None:
            pause = now - self._idle_since
            if pause > self._idle:
                self._pause += (pause - self._pause) / PAUSES
            self._idle_since = None
        if self.token == "runs":
            return
        self.queue.mode, self._blocked = "quiet", True
        if self.token == "parked":
            self._asked = now
            self._run(now, now)
            self._ears.took(self)
        elif self.token == "none" and (not self._draining or self._told):
            self.ask(now)

    def freeze(self) -> None:
        """Its process is stopped, for ever. What it has launched runs on."""
        self._frozen = True
        self.queue.mode, self.queue.left = "quiet", 0
        self.changed()

    def ask(self, now: int) -> None:
        """Wants the token."""
        self.token, self._asked = "waiting", now
        self._ears.request(self)

    def _host(self, now: int) -> bool:
        """Whether the program went on."""
        queue, step = self.queue, self._step
        if isinstance(step, Launch):
            if step.until is not None and now >= step.until:
                queue.left = 0
            if queue.left > 0:
                return self._launching(now)
            queue.mode, self._blocked = "quiet", False
        elif isinstance(step, Sync):
            if queue.backlog > 0:
                return False
        elif isinstance(step, Pause) and now < step.until:
            return False
        self._next(now)
        return True

    def _launching(self, now: int) -> bool:
        """Whether its last kernel is launched."""
        queue = self.queue
        if queue.mode == "full" and queue.gap >= queue.kernel and queue.backlog <= queue.window:
            queue.mode, queue.next = "flow", now
        elif queue.mode == "flow" and queue.limit == 0 and queue.next <= now:
            if queue.backlog > queue.window:
                queue.mode = "full"
            else:
                queue.limit = 1  # there is room after all
                self.settle(now)
        return queue.left == 0

    def _next(self, now: int) -> None:
        try:
            self._begin(self._steps.send(now), now)
        except StopIteration:
            self._step = Pause(NEVER, False)

    def _note_idle(self, now: int) -> None:
        if not self._idles():
            self._idle_since = None if self.queue.mode != "quiet" or self.queue.backlog > 0 else self._idle_since
        elif self._idle_since is None:
            self._idle_since = now

    # --- the hook ---------------------------------------------------------------------------------------------------

    def terms(self, now: int, terms: Terms) -> None:
        """The terms of its turn, or of its next turn."""
        self.settle(now)
        self._deadline, self._submissions = terms.deadline, terms.submissions
        self._window = COUNTED_WINDOW if terms.submissions else terms.window
        self._idle, self._idle_most = terms.idle, terms.idle_most
        self._counters.poll = max(1, terms.poll)
        queue = self.queue
        queue.window = self._window
        if queue.mode == "full" and queue.backlog <= self._window:
            queue.mode, queue.next = "flow", now
        self.changed()

    def granted(self, now: int) -> None:
        """May submit; its thread wakes up a moment later."""
        self.waits.append(now - self._asked)
        if self._frozen:
            self.token = "runs"
            return
        if self._draining:  # the old tail is part of the new turn
            self._draining = False
            self._ears.drained(self)
        self._run(now, now + self._reaction)
        self._note_idle(now)

    def _run(self, now: int, begins: int) -> None:
        self.settle(now)
        self.token = "runs"
        self._granted = now
        self._counters.since = begins
        self._first = self.queue.launches
        if self._idle_since is not None:
            self._idle_since = begins
        if self._blocked:
            self._blocked = False
            self.queue.mode, self.queue.next = "flow", begins
            self.queue.limit = 0
        self.changed()

    def revoked(self, now: int) -> None:
        """It heard of the order to stop."""
        if self.token == "runs" and self.present and not self._frozen:
            self.settle(now)
            self._stop("revoked", now)

    def park(self, now: int) -> None:
        """May take the token without asking."""
        if self.token == "none":
            self.settle(now)
            self.token, self._deadline = "parked", NEVER
            self.changed()

    def unpark(self, now: int) -> None:
        """May not any more."""
        if self.token == "parked":
            self.settle(now)
            self.token = "none"
            self.changed()

    def _watch(self, now: int) -> None:
        """Whether its turn is over."""
        if self.token != "runs":
            return
        queue, end = self.queue, self._end()
        if end != NEVER and self._over(now, end):
            self._stop("deadline", now)
        elif self._idles() and self._idle_since is not None and now >= self._idle_since + self._grace():
            self._stop("idle", now)
        elif queue.mode == "quiet" and queue.backlog <= 0 and self._idle_since is None:
            self._note_idle(now)

    def _over(self, now: int, end: int) -> bool:
        queue = self.queue
        in_flight = queue.backlog
        if now >= end or (queue.mode == "quiet" and now + in_flight >= end):
            return True
        if queue.pace <= 0 and now + in_flight >= end:
            return True
        if queue.launches == self._first:
            return False
        if self._counted() <= 0:
            return True
        late = now + in_flight + self._ahead() + 1 >= end
        if queue.mode == "flow":
            return late and queue.next <= now
        return queue.mode == "full" and late and in_flight <= queue.window + 1

    def _stop(self, reason: Reason, now: int) -> None:
        queue = self.queue
        if queue.mode != "quiet":
            queue.mode, self._blocked = "quiet", True
        self.token, self._reason = "none", reason
        self._draining, self._told = True, False
        self._follow_tail(now)
        self.changed()

    def _follow_tail(self, now: int) -> None:
        if not self._draining:
            return
        in_flight = self.queue.backlog
        if not self._told and (in_flight <= LEAD or self._reason == "revoked"):
            self._told = True
            wants = self._reason in {"deadline", "revoked"} or self._blocked
            if wants:
                self.token, self._asked = "waiting", now
            self._ears.stopped(self, self._reason, int(in_flight), wants=wants)
        if self._told and in_flight <= 0 and self._draining:
            self._draining = False
            self._ears.drained(self)
