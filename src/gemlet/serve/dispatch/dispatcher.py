"""Requests on their way to gpu-lets: admission, routing, batching, early drop. The caller gives the time, in
milliseconds.

One queue a model, for all gpu-lets that serve it: a gpu-let that is free takes its next batch when it can run it, so a
request is bound as late as possible. Among free gpu-lets the one that is furthest behind its planned rate goes first.
On a gpu-let with several models the most urgent one has its turn: the one whose oldest request must start soonest.

A batch is as large as planned, or larger if the gpu-let has one model and the oldest request still comes in time. Sizes
are in rows; a request of several rows is never divided. A request that could not be answered in time even if it started
now, in the batch that would be formed, is dropped at once and its sender told so: serving it would make those behind it
late as well. Batches take longer than expected at times: where more waits than the batch takes, and in a batch larger
than planned, the oldest must have a margin left, learned from such batches. Otherwise another request takes its place,
which is in time more surely.

In a queue the lower priority number goes first. Among equals the clients have turns, a row each; of one client's
requests the earlier deadline goes first.

Requests that may fail a batch (faults.py) stand in a line of their own, and share no batch with others. While others
wait for a gpu-let, it runs such a batch every second time at most: whatever these requests cost, the others wait for
one run of theirs. A batch that failed is divided in that line, until the requests at fault are alone.

The same code runs live and in the simulator; its caller advances the time and does the work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gemlet.serve.dispatch.faults import Faults
from gemlet.serve.dispatch.gpu_lets import Assignment, Batch, GpuLetState
from gemlet.serve.dispatch.meetings import Meetings, NoneWaits
from gemlet.serve.dispatch.quarantine import Quarantine
from gemlet.serve.dispatch.queue import Line, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gemlet.serve.dispatch.meetings import Waiting
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.plan.model import Plan

SLACK_MS = 1e-9
EXPIRE_BUDGET = (
    1000  # waiting requests that expire() looks at on average: it takes its time, of whatever else is served
)
LATE_AT_ONCE = 32  # after so many the batch that would be formed is looked at once for as many again
MARGIN_PART = 0.25  # of the time from a request's arrival to its deadline, which no margin is above


class Expects(Protocol):
    """Predicts how long batches take, in milliseconds, and learns from measurements; Expectation implements it."""

    def __call__(self, place: Assignment, rows: int) -> float:
        """A batch of this many rows on this gpu-let, neighbours included."""
        ...

    def margin(self, place: Assignment) -> float:
        """By how much nearly no batch is slower than that."""
        ...

    def observe(self, place: Assignment, rows: int, ms: float) -> None:
        """Takes note of how long one took."""
        ...

    def relax(self, place: Assignment) -> None:
        """All waiting requests were dropped because of a prediction, so no batch will be measured."""
        ...


@dataclass(slots=True, frozen=True)
class Drop:
    """A request that will not be served, and the reason to tell its sender.

    late: because of its deadline; ``expected``: milliseconds that the batch would have taken, where that was the point.
    """

    request: Request
    reason: str
    late: bool = False
    expected: float | None = None


class Dispatcher:
    """The queues of one plan. Every request comes out exactly once: in a batch, or as a drop.

    expect: predicts how long a batch will take, and is told how long it took. max_batch: the largest a model may have,
    planned or not; drop: False serves late rather than never. suspects: models whose requests run one by one. faults:
    whose requests may fail a batch. waits: which batches wait for others.
    """

    def __init__(
        self,
        plan: Plan,
        expect: Expects,
        max_batch: Callable[[str], int],
        *,
        drop: bool = True,
        suspects: Quarantine | None = None,
        faults: Faults | None = None,
        waits: Waiting | None = None,
    ) -> None:
        self._expect = expect
        self._max_batch = max_batch
        self._drop = drop
        self._suspects = suspects or Quarantine()
        self._alone = self._suspects.alone
        self._faults = faults if faults is not None else Faults()
        self.queues: dict[str, Queue] = {}
        self.meetings = Meetings(self._suspects, waits or NoneWaits(), self.queues)
        self.gpu_lets: list[GpuLetState] = []
        self._places: dict[str, list[Assignment]] = {}
        self._drops: list[Drop] = []
        self._budget = 0  # that are left; below 0: of later calls of expire()
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """Replaces the plan. What waits goes on waiting, for the new gpu-lets; what runs ends where it runs."""
        for gpu_let in self.gpu_lets:
            gpu_let.retired = True
        self.gpu_lets = []
        self._places = {}
        for gpu in plan.gpus:
            for number, planned in enumerate(gpu.gpu_lets):
                gpu_let = GpuLetState(gpu.index, number, planned.sm)
                for task in planned.tasks:
                    place = Assignment(gpu_let, task.model, task.batch, task.rate, task.slowdown)
                    gpu_let.places[task.model] = place
                    self._places.setdefault(task.model, []).append(place)
                self.gpu_lets.append(gpu_let)
        self.meetings.gpu_lets = self.gpu_lets
        for model in self._places:
            self.queues.setdefault(model, Queue())
        for model, queue in self.queues.items():
            if model not in self._places:
                self._give_up(queue, f"the new plan does not serve {model}")

    def carry_on(self, old: GpuLetState, new: GpuLetState) -> None:
        """``new`` is the one that ``old`` was, and executes what that does, be it of models that it has no more."""
        for batch in old.batches:
            batch.place = new.places.get(batch.place.model) or replace(batch.place, gpu_let=new)
        new.running, new.beside, new.doubted = old.running, old.beside, old.doubted
        old.running, old.beside = None, []

    def submit(self, request: Request) -> None:
        """Puts a request in its queue; one that no gpu-let serves is dropped."""
        if request.model in self._places:
            queue, faults = self.queues[request.model], self._faults
            doubted = request.together or (faults and faults.doubted(request.model, request.client, request.arrived))
            (queue.doubted if doubted else queue.trusted).add(request)
        else:
            self._drops.append(Drop(request, f"no gpu-let serves {request.model}"))

    def serves(self, model: str) -> bool:
        """Whether the plan has a gpu-let for it."""
        return model in self._places

    def suspend(self, gpu: int) -> None:
        """Starts nothing on this GPU's gpu-lets until resume(); what waits goes on waiting."""
        for gpu_let in self.gpu_lets:
            gpu_let.suspended = gpu_let.suspended or gpu_let.gpu == gpu

    def resume(self, gpu: int) -> None:
        for gpu_let in self.gpu_lets:
            gpu_let.suspended = gpu_let.suspended and gpu_let.gpu != gpu

    def expire(self, now: float) -> None:
        """Drops requests that waited past their deadlines: for servers in real time, where a gpu-let may never get
        free."""
        if not self._drop:
            return
        self._budget = min(EXPIRE_BUDGET, self._budget + EXPIRE_BUDGET)
        lines = [line for queue in self.queues.values() for line in queue.lines if line.rows]
        for line in sorted(lines, key=lambda line: line.looked):  # those first that wait for theirs
            cost = line.to_look_at(now)
            if cost and self._budget <= 0:
                continue
            self._budget -= cost
            self._drops += [
                Drop(request, "its deadline passed while it waited", late=True) for request in line.late(now)
            ]

    def start(self, now: float, model: str | None = None) -> Iterator[Batch]:
        """Batches to execute now, each on a gpu-let that was free and is not any more.

        model: looks at the gpu-lets that serve it only, on which another model may be more urgent; None: at all.
        """
        waiting = [model] if model is not None else [model for model in self._places if self.queues[model]]
        if self._alone:
            waiting.sort(key=self._turn)
        for model in waiting:  # noqa: PLR1704  the one that was asked for, or each
            for place in self._free(model):
                if not self.queues[model]:
                    break
                if place.gpu_let.running is None:
                    batch = self._next(place.gpu_let, now)
                    if batch is not None:
                        yield batch

    def finish(self, batch: Batch, now: float, *, whole: bool = True) -> Iterator[Batch]:
        """The batch is done; what its gpu-let executes next, if anything.

        whole: it was executed, and in one piece, so that its time says how long such batches take.
        """
        gpu_let = batch.gpu_let
        if batch is not gpu_let.running:
            gpu_let.beside.remove(batch)
        else:
            gpu_let.running = gpu_let.beside.pop(0) if gpu_let.beside else None
        if whole:
            self._expect.observe(batch.place, batch.rows, now - batch.started)
        if gpu_let.running is None and not gpu_let.retired and not gpu_let.suspended:
            following = self._next(gpu_let, now)
            if following is not None:
                yield following

    def start_beside(self, request: Request, place: Assignment, now: float) -> Batch:
        """A waiting request as a batch beside those of a gpu-let, all of which wait."""
        self.queues[request.model].remove(lambda each: each is request)
        batch, gpu_let = Batch(place, [request], now), place.gpu_let
        if gpu_let.running is None:
            gpu_let.running = batch
        else:
            gpu_let.beside.append(batch)
        return batch

    def places(self, model: str) -> Sequence[Assignment]:
        """Where the plan has a model."""
        return self._places.get(model, ())

    def drops(self) -> list[Drop]:
        """Requests dropped since the last call."""
        dropped, self._drops = self._drops, []
        return dropped

    def take_away(self, gpu: int, model: str, reason: str) -> None:
        """No gpu-let of this GPU serves the model any more."""
        for place in self._places.get(model, []):
            if place.gpu_let.gpu == gpu:
                place.gpu_let.places.pop(model, None)
        left = [place for place in self._places.get(model, []) if place.gpu_let.gpu != gpu]
        if left:
            self._places[model] = left
        elif self._places.pop(model, None) is not None:
            self.give_up(model, reason)

    def take_out(self, unwanted: Callable[[Request], bool]) -> list[Request]:
        """The requests that wait and are ``unwanted``; they are no concern of this any more."""
        return [request for queue in self.queues.values() if queue for request in queue.remove(unwanted)]

    def waits(self) -> bool:
        """Whether anything does."""
        return any(self.queues.values())

    def waits_for(self, model: str) -> bool:
        """Whether anything does for this one."""
        return model in self.queues and bool(self.queues[model])

    def give_up(self, model: str, reason: str) -> None:
        """Drops what waits for a model."""
        if model in self.queues:
            self._give_up(self.queues[model], reason)

    def abandon(self, reason: str) -> list[Drop]:
        """Gives up whatever still waits, for the end of a server."""
        for queue in self.queues.values():
            self._give_up(queue, reason)
        return self.drops()

    def _give_up(self, queue: Queue, reason: str) -> None:
        for line in queue.lines:
            while line:
                self._drops.append(Drop(line.pop(), reason))

    def _free(self, model: str) -> list[Assignment]:
        free = [place for place in self._places[model] if place.gpu_let.running is None and not place.gpu_let.suspended]
        return sorted(free, key=lambda place: place.credit) if len(free) > 1 else free

    def _next(self, gpu_let: GpuLetState, now: float) -> Batch | None:
        while True:
            found = self._most_urgent(gpu_let)
            if found is None:
                return None
            place, line, request = found
            batch = self._form(place, line, now) if request is None else self._form_of(place, line, request, now)
            if batch is not None:
                gpu_let.running = batch
                return batch

    def _most_urgent(self, gpu_let: GpuLetState) -> tuple[Assignment, Line, Request | None] | None:
        """Whose turn it is; a request: that one alone."""
        waiting: list[tuple[Assignment, Line, Request | None]]
        if self._alone:
            waiting = [found for place in gpu_let.places.values() for found in self._that_may_start(place)]
        else:
            waiting = [
                (place, line, None)
                for place in gpu_let.places.values()
                for line in self.queues[place.model].lines
                if line.rows
            ]
        if gpu_let.doubted:
            waiting = [found for found in waiting if not found[1].doubted] or waiting
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda found: self._urgency(*found))

    def _that_may_start(self, place: Assignment) -> Iterator[tuple[Assignment, Line, Request | None]]:
        """As _most_urgent(), of what does not meet a suspect there that it must not meet."""
        lines = [line for line in self.queues[place.model].lines if line.rows]
        if not lines:
            return
        asked, others = self.meetings.may_start(place)
        for line in lines:
            if others:
                yield place, line, None
            elif asked is not None and (request := next(filter(asked, line.asked), None)) is not None:
                yield place, line, request

    def _turn(self, model: str) -> tuple[bool, bool, int]:
        """In which order models start on an executor that has just come back: it tells most of the first one."""
        doubted = self.queues[model].doubted
        return model not in self._suspects.by_itself, model not in self._alone, doubted.head.firsts if doubted else 0

    def _urgency(self, place: Assignment, line: Line, request: Request | None) -> tuple[bool, int, int, float]:
        """First what is suspect, for others wait until it has run; by priority, then by when the head must start at the
        latest."""
        request, rows = (request, request.rows) if request else (line.head, line.fitting(self._planned(place)))
        suspect = bool(request.together) and place.model in self._alone
        return not suspect, request.firsts, request.priority, request.deadline - self._expect(place, rows)

    def _planned(self, place: Assignment) -> int:
        """Rows of a planned batch; a plan that came from elsewhere may have more than the model takes."""
        if place.model in self._alone:
            return 1
        return min(place.batch, self._max_batch(place.model))

    def _form_of(self, place: Assignment, line: Line, request: Request, now: float) -> Batch:
        """Of one request, wherever in its line it stands."""
        line.remove(lambda each: each is request)
        place.gpu_let.doubted = line.doubted
        return Batch(place, [request], now)

    def _form(self, place: Assignment, line: Line, now: float) -> Batch | None:
        """The next batch of this line here, or None if all that waits in it is too late, or belongs to the other."""
        if self._faults and not line.doubted:
            self._set_aside(place.model, line, now)
        rows = self._drop_late(place, line, now)
        if not line.rows:
            return None
        if len(place.gpu_let.places) == 1 and line.rows > rows and place.model not in self._alone:
            rows = self._stretch(place, line, rows, now)
        requests = line.take(rows)
        if self._faults and not line.doubted:
            requests = self._trusted(requests, now)
            if not requests:
                return None
            rows = sum([request.rows for request in requests])
        place.gpu_let.doubted = line.doubted
        place.credit += rows / place.rate if place.rate > 0 else 0.0
        return Batch(place, requests, now)

    def _drop_late(self, place: Assignment, line: Line, now: float) -> int:
        """Drops what could not be answered in time in the batch that would be formed; the rows of that batch. After
        some that were dropped it looks now and then only how large that is by then: thousands may be late at once."""
        rows, known, dropped = line.fitting(self._planned(place)), True, 0
        while self._drop and line.rows and not (head := line.head).may_be_late:
            expected = self._expect(place, rows)
            if line.rows > rows:  # what is dropped makes room for another
                expected += self._margin(place, head)
            if head.deadline + SLACK_MS >= now + expected:
                if known:
                    break
                rows, known = line.fitting(self._planned(place)), True
                continue
            self._drops.append(Drop(line.pop(), "its deadline could not be met", late=True, expected=expected))
            dropped += 1
            known = dropped <= LATE_AT_ONCE or dropped % LATE_AT_ONCE == 0
            rows = line.fitting(self._planned(place)) if known else min(rows, line.rows)
            if not line.rows:
                self._expect.relax(place)
        return rows if known else line.fitting(self._planned(place))

    def _set_aside(self, model: str, line: Line, now: float) -> None:
        """As _trusted(), for those that are next: one client may have all that wait, in as many batches."""
        doubted = self.queues[model].doubted
        while line.rows and self._faults.doubted(model, line.next.client, now):
            doubted.add(line.pass_over())

    def _trusted(self, requests: list[Request], now: float) -> list[Request]:
        """Of these; the others, whose clients had one at fault since they came, go to their line."""
        trusted = []
        for request in requests:
            if self._faults.doubted(request.model, request.client, now):
                self.queues[request.model].doubted.add(request)
            else:
                trusted.append(request)
        return trusted

    def _stretch(self, place: Assignment, line: Line, rows: int, now: float) -> int:
        """A larger batch than planned, as far as the head still comes in time: how a burst is caught up with."""
        low, high = rows, max(rows, min(line.rows, self._max_batch(place.model)))
        if line.head.may_be_late:
            return line.fitting(high)
        latest = line.head.deadline - self._margin(place, line.head)
        while low < high:
            middle = (low + high + 1) // 2
            if now + self._expect(place, middle) <= latest:
                low = middle
            else:
                high = middle - 1
        return line.fitting(low)

    def _margin(self, place: Assignment, head: Request) -> float:
        return min(self._expect.margin(place), MARGIN_PART * (head.deadline - head.arrived))
