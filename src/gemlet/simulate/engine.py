"""The device, its clients and the real arbiter in virtual time.

The device runs one client at a time, in the order of the grants. A client submits until its window before the
deadline, the rest of the window drains meanwhile; kernels are not cut, so a turn may end up to one kernel late. A grant
to another client than the last costs a context switch.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gemlet._native import NEVER, Arbiter
from gemlet.model import GROUP_FIELDS
from gemlet.simulate.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.model import GroupSpec
    from gemlet.simulate.workload import DeviceModel, ProgramSpec, Workload

LATENCY_WINDOW = 100_000  # ns; kLatencyWindow of native/hook/submit/pacer.h
Reason = Literal["deadline", "idle", "revoked", "exit"]


@dataclass(slots=True)
class Run:
    """The device worked for ``client`` in [start, end)."""

    client: int
    start: int
    end: int


@dataclass(slots=True)
class Client:
    number: int
    group: str
    program: Program
    state: Literal["away", "idle", "waiting", "running", "parked"] = "away"
    plan: int = 0  # raised to make the events planned so far void
    begin: int = 0  # its work starts on the device: after the switch and the drain of the one before
    behind: Client | None = None  # still holds the device as this one's turn begins
    granted: int = 0
    deadline: int = NEVER
    window: int = 0
    until: int = 0  # its turn will end then, as far as is known
    asked: int = 0
    waits: list[int] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)  # has work for the device in [from, to)
    busy_since: int | None = None


@dataclass(slots=True)
class Outcome:
    """What happened. ``targets`` holds (time, {group: target}) whenever the targets were sampled."""

    clients: list[Client]
    runs: list[Run]
    usage: dict[str, int]
    targets: list[tuple[int, dict[str, float]]]
    handovers: int
    duration: int


class Engine:
    """Runs one workload; ``Engine(workload).run()``."""

    SAMPLE = 10_000_000

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._device: DeviceModel = workload.device
        self.arbiter = Arbiter(workload.policy, **workload.parameters)
        self.now = 0
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._clients: list[Client] = []
        self._runs: list[Run] = []
        self._last: Client | None = None  # whose context is on the device
        self._free_at = 0  # the device has drained what was handed to it
        self._handovers = 0
        self._targets: list[tuple[int, dict[str, float]]] = []
        self._groups: dict[str, int] = {}
        for spec, programs in workload.groups:
            self.set_group(spec)
            for program in programs:
                for _ in range(program.count):
                    self._add(spec.name, program)

    def set_group(self, spec: GroupSpec) -> None:
        """Creates or changes a group at the present moment."""
        fields = {name: getattr(spec, name) for name, field in GROUP_FIELDS.items() if field.time}
        self._groups[spec.name] = self.arbiter.set_group(spec.name, self.now, **fields)
        self._act()

    def at(self, time: int, do: Callable[[], None]) -> None:
        """``do`` at ``time`` of the virtual clock."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), do))

    def run(self) -> Outcome:
        """Runs to the end of the workload's duration."""
        self.at(0, self._sample)
        end = self._workload.duration
        while True:
            tick = self.arbiter.next_event()
            # At the same moment clients come first: who stops on time is not late.
            if self._events and self._events[0][0] <= tick:
                time, _, do = heapq.heappop(self._events)
            else:
                time, do = tick, self._tick
            if time >= end:
                break
            self.now = time
            do()
            self._act()
        self.now = end
        for client in self._clients:
            if client.state == "running":
                self._work(client, end)
            self._note_busy(client, False)
        usage = {row["name"]: row["used"] for row in self.arbiter.usage(end)}
        return Outcome(self._clients, self._runs, usage, self._targets, self._handovers, end)

    # --- clients ----------------------------------------------------------------------------------------------------

    def _add(self, group: str, spec: ProgramSpec) -> None:
        number = len(self._clients)
        client = Client(number, group, Program(spec, random.Random(self._workload.seed * 1000 + number)))
        self._clients.append(client)
        self.at(spec.arrive, lambda: self._enter(client))
        if spec.leave is not None:
            self.at(spec.leave, lambda: self._exit(client))

    def _enter(self, client: Client) -> None:
        client.state = "idle"
        self.arbiter.add_client(client.number, self._groups[client.group], self.now)
        self.at(client.program.first_arrival(), lambda: self._arrive(client))

    def _exit(self, client: Client) -> None:
        if client.state == "running":
            self._work(client, self.now)
        client.plan += 1
        client.state = "away"
        self._note_busy(client, False)
        self.arbiter.remove_client(client.number, self.now)

    def _arrive(self, client: Client) -> None:
        if client.state == "away":
            return
        following = client.program.arrive(self.now)
        if following is not None:
            self.at(following, lambda: self._arrive(client))
        if client.program.spec.kind == "onoff":
            self.at(self.now + client.program.spec.on, lambda: self._pause(client))
        self._note_busy(client, True)
        if client.state == "idle":
            self._ask(client)
        elif client.state == "parked":
            client.granted = self.now
            client.asked = self.now
            self._start(client)
            self.arbiter.took(client.number, self.now)
        elif client.state == "running":
            self._settle_work(client)
            self._plan(client)

    def _pause(self, client: Client) -> None:
        if client.state == "away":
            return
        self._settle_work(client)
        client.program.pause()
        self._note_busy(client, False)
        self.at(self.now + client.program.spec.off, lambda: self._arrive(client))
        if client.state == "running":
            self._plan(client)

    def _ask(self, client: Client) -> None:
        client.state = "waiting"
        client.asked = self.now
        self.arbiter.want(client.number, self.now)

    def _note_busy(self, client: Client, busy: bool) -> None:
        if busy and client.busy_since is None:
            client.busy_since = self.now
        elif not busy and client.busy_since is not None:
            client.busy.append((client.busy_since, self.now))
            client.busy_since = None

    # --- a turn -----------------------------------------------------------------------------------------------------

    def _start(self, client: Client) -> None:
        client.state = "running"
        client.waits.append(self.now - client.asked)
        switch = 0
        if self._last is not client:
            switch = self._device.switch
            self._handovers += 1
        late = [other for other in self._clients if other is not client and other.state == "running"]
        client.behind = max(late, key=lambda other: other.until, default=None)
        until = client.behind.until if client.behind else 0
        client.begin = max(self._free_at, self.now + self._device.reaction, until) + switch
        self._last = client

    def _plan(self, client: Client) -> None:
        """Finds the next thing that happens in this turn: the job's end, the quantum's end, or idleness."""
        client.plan += 1
        plan = client.plan
        spec = client.program.spec
        job = client.program.work_left
        last = NEVER
        if client.deadline != NEVER:
            last = client.granted + round((client.deadline - client.granted) * spec.overrun)
        client.until = self.now
        if job and last != NEVER:
            client.until = client.begin + self._whole(client, last - client.begin)
        end = min(last, client.until) if job and last != NEVER else last
        submit_until = max(self.now, end - min(client.window, last - client.granted))
        if job == 0:
            self._later(client, plan, min(self.now + self._device.idle_release, submit_until), self._stop_idle)
        elif max(client.begin, self.now) + job <= last:
            self._later(client, plan, max(client.begin, self.now) + job, self._job_done)
        else:
            self._later(client, plan, submit_until, lambda c: self._stop(c, "deadline", last))

    def _later(self, client: Client, plan: int, time: int, do: Callable[[Client], None]) -> None:
        self.at(time, lambda: do(client) if client.plan == plan and client.state == "running" else None)

    def _work(self, client: Client, until: int) -> None:
        if until > client.begin:
            self._runs.append(Run(client.number, client.begin, until))
            client.program.did(until - client.begin)
            client.begin = until
        self._free_at = max(self._free_at, until)

    def _settle_work(self, client: Client) -> None:
        if client.state == "running" and client.program.work_left:
            self._work(client, self.now)
        elif client.state == "running":
            client.begin = max(client.begin, self.now)

    def _job_done(self, client: Client) -> None:
        self._work(client, self.now)
        following = client.program.complete(self.now)
        if following is not None:
            self.at(following, lambda: self._arrive(client))
        if client.program.work_left == 0:
            self._note_busy(client, False)
        self._plan(client)

    def _stop_idle(self, client: Client) -> None:
        client.plan += 1
        client.state = "idle"
        self.arbiter.stopped(client.number, "idle", 0, self.now)

    def _stop(self, client: Client, reason: Reason, last: int) -> None:
        """Submits no more; what is in flight ends at ``last``, or with the kernel that runs then."""
        client.plan += 1
        begin = client.begin
        length = max(0, min(last - begin, client.program.work_left))
        length = min(self._whole(client, length), client.program.work_left)
        end = max(self.now, begin + length) if length else self.now
        done_by = begin + client.program.work_left
        self._work(client, begin + length)
        client.state = "idle"
        for other in self._clients:
            if other.behind is client and other.state == "running" and other.begin > end:
                # It stopped sooner than was to be expected when the other took its token.
                other.begin = max(end, self.now) + self._device.switch
                self._plan(other)
        self.arbiter.stopped(client.number, reason, max(0, min(client.window, end - self.now)), self.now)
        self.at(end, lambda: self.arbiter.drained(client.number, end, end))
        if client.program.work_left:
            self._ask(client)
        else:
            self.at(done_by, lambda: self._done_while_draining(client))

    def _whole(self, client: Client, length: int) -> int:
        """As many whole kernels as come nearest; with a latency client on the device, as end in time. One at least."""
        kernel = client.program.spec.kernel
        count = length // kernel if client.window <= LATENCY_WINDOW else round(length / kernel)
        return max(count, int(length > 0)) * kernel

    def _done_while_draining(self, client: Client) -> None:
        if client.state == "away":
            return
        following = client.program.complete(self.now)
        if following is not None:
            self.at(following, lambda: self._arrive(client))
        if client.program.work_left == 0:
            self._note_busy(client, False)
        elif client.state == "idle":
            self._ask(client)

    # --- the arbiter ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.arbiter.tick(self.now)

    def _act(self) -> None:
        while actions := self.arbiter.take_actions():
            for kind, number, deadline, window, *_ in actions:
                client = self._clients[number]
                if kind == "grant":
                    client.granted, client.deadline, client.window = self.now, deadline, window
                    self._start(client)
                    self._plan(client)
                elif kind == "update" and client.state == "running":
                    client.deadline, client.window = deadline, window
                    self._settle_work(client)
                    self._plan(client)
                elif kind == "revoke" and client.state == "running":
                    client.plan += 1
                    self._later(client, client.plan, self.now + self._device.reaction, self._revoked)
                elif kind == "park" and client.state == "idle":
                    client.state = "parked"
                elif kind == "unpark" and client.state == "parked":
                    client.state = "idle"

    def _revoked(self, client: Client) -> None:
        self._settle_work(client)
        window = client.window if client.program.work_left else 0
        self._stop(client, "revoked", max(self.now, client.begin) + min(window, client.program.work_left))

    def _sample(self) -> None:
        self._targets.append((self.now, {row["name"]: row["target"] for row in self.arbiter.usage(self.now)}))
        self.at(self.now + self.SAMPLE, self._sample)
