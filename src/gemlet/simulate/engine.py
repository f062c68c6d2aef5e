"""Programs on one modelled device under the real arbiter, in virtual time."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemlet._native import NEVER, Arbiter
from gemlet.model import GROUP_FIELDS
from gemlet.simulate.client import Client, Terms
from gemlet.simulate.counters import BIN
from gemlet.simulate.device import Device
from gemlet.simulate.program import Program
from gemlet.simulate.timeline import Timeline
from gemlet.simulate.workload import DeviceModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.model import GroupSpec
    from gemlet.simulate.client import Reason
    from gemlet.simulate.collective import Ranks
    from gemlet.simulate.workload import ProgramSpec, Workload

NO_ARBITER = "none"  # as a policy: everybody submits at any time, with nothing but the hardware in between
UNMANAGED_WINDOW = 8_000_000


@dataclass(slots=True)
class Run:
    """The device worked for ``client`` in [start, end), with no other in between."""

    client: int
    start: int
    end: int


@dataclass(slots=True)
class Outcome:
    """What happened. ``targets`` holds (time, {group: target}) whenever the targets were sampled.

    ``states`` holds (time, {group: row of the arbiter's usage}) of the same moments.
    """

    clients: list[Client]
    runs: list[Run]
    usage: dict[str, int]
    targets: list[tuple[int, dict[str, float]]]
    states: list[tuple[int, dict[str, dict[str, Any]]]]
    handovers: int
    duration: int

    def work(self, client: int, start: int = 0, end: int | None = None) -> float:
        """Device time of a client's own work in [start, end), which are multiples of BIN."""
        end = self.duration if end is None else end
        return sum(self.clients[client].work.values[start // BIN : end // BIN])

    def speeds(self, client: int, alone: Outcome, window: int, *, start: int = 0) -> list[float]:
        """Speed against alone in each window from ``start`` on; windows in which it did nothing alone are left out."""
        found = []
        for begin in range(start, self.duration - window + 1, window):
            most = alone.work(client, begin, begin + window)
            if most > 0:
                found.append(self.work(client, begin, begin + window) / most)
        return found

    def speed(self, client: int, alone: Outcome, *, start: int = 0, end: int | None = None) -> float:
        """Speed against alone over [start, end)."""
        return self.work(client, start, end) / max(alone.work(client, start, end), 1.0)


def _parameters(workload: Workload) -> dict[str, float]:
    """The arbiter's; what an idle holder does is among them."""
    idle = workload.device.idle_release
    given = {} if idle == DeviceModel().idle_release else {"idle_contended": idle, "idle_most": max(idle, 2_000_000)}
    return given | workload.parameters


class Unmanaged:
    """Stands where the arbiter does, and lets everybody run."""

    def __init__(self) -> None:
        self._actions: list[tuple[Any, ...]] = []
        self._groups: dict[str, int] = {}

    def set_group(self, name: str, now: int, **spec: Any) -> int:
        return self._groups.setdefault(name, len(self._groups))

    def request(self, client: int, now: int) -> None:
        self._actions.append(("grant", client, NEVER, UNMANAGED_WINDOW, NEVER, NEVER, 1_000_000, 0, True, False))

    def add_client(self, client: int, group: int, now: int, *, mps: bool = False) -> None:
        pass

    def remove_client(self, client: int, now: int) -> None:
        pass

    def took(self, client: int, now: int) -> None:
        pass

    def stopped(self, client: int, reason: str, tail: int, now: int) -> None:
        pass

    def drained(self, client: int, at: int, now: int) -> None:
        pass

    def progress(self, client: int, *counters: int) -> None:
        pass

    def next_event(self) -> int:
        return NEVER

    def tick(self, now: int) -> None:
        pass

    def take_actions(self) -> list[tuple[Any, ...]]:
        actions, self._actions = self._actions, []
        return actions

    def usage(self, now: int) -> list[dict[str, Any]]:
        return [{"name": name, "used": 0, "target": 0.0} for name in self._groups]


class Engine:
    """Runs one workload on one device; ``Engine(workload).run()``."""

    SAMPLE = 10_000_000

    def __init__(self, workload: Workload, *, only: int | None = None, timeline: Timeline | None = None) -> None:
        """``only``: of its clients, just this one takes part. ``timeline``: that of the host's other devices."""
        self._workload = workload
        self._unmanaged = workload.policy == NO_ARBITER
        self.arbiter: Any = Unmanaged() if self._unmanaged else Arbiter(workload.policy, **_parameters(workload))
        self._timeline = Timeline() if timeline is None else timeline
        self._clients: list[Client] = []
        self._changed: dict[int, Client] = {}
        self._device = Device(workload.device, self.at)
        self._runs: list[Run] = []
        self._targets: list[tuple[int, dict[str, float]]] = []
        self._states: list[tuple[int, dict[str, dict[str, Any]]]] = []
        self._groups: dict[str, int] = {}
        self._sm: dict[str, float] = {}
        for spec, programs in workload.groups:
            self.set_group(spec)
            for program in programs:
                for _ in range(program.count):
                    self.add(spec.name, program, takes_part=only is None or only == len(self._clients))

    @property
    def now(self) -> int:
        return self._timeline.now

    @property
    def duration(self) -> int:
        return self._workload.duration

    def client(self, number: int) -> Client:
        """One of its clients."""
        return self._clients[number]

    def set_group(self, spec: GroupSpec) -> None:
        """Creates or changes a group at the present moment."""
        self._sm[spec.name] = spec.sm
        fields = {name: getattr(spec, name) for name, field in GROUP_FIELDS.items() if field.time}
        self._groups[spec.name] = self.arbiter.set_group(spec.name, self.now, **fields)
        self.act()

    def remove_group(self, name: str) -> None:
        """Removes a group without clients at the present moment."""
        self.arbiter.remove_group(self._groups.pop(name), self.now)
        self.act()

    def at(self, time: int, do: Callable[[], None]) -> None:
        """``do`` at ``time`` of the virtual clock."""
        self._timeline.at(time, do)

    def run(self) -> Outcome:
        """Runs to the end of the workload's duration."""
        play([self], self._timeline)
        return self.outcome()

    def tick(self) -> None:
        """It is time for the arbiter to look."""
        self._tell_progress()
        self.arbiter.tick(self.now)

    def follow(self) -> None:
        """Something happened: what the device does now, and what comes next for its clients."""
        self._device.update(self.now)
        while self._changed:
            self._plan_all()

    def outcome(self) -> Outcome:
        """What happened up to the present moment."""
        for client in self._clients:
            client.settle(self.now)
        usage = {row["name"]: row["used"] for row in self.arbiter.usage(self.now)}
        return Outcome(
            self._clients,
            self._runs,
            usage,
            self._targets,
            self._states,
            self._device.switches,
            self._workload.duration,
        )

    def _plan_all(self) -> None:
        changed, self._changed = self._changed, {}
        for client in changed.values():
            client.version += 1
            client.settle(self.now)
            time = client.next_event() if client.present else None
            if time is not None:
                self._timeline.wake(time, client)

    # --- clients ----------------------------------------------------------------------------------------------------

    def add(self, group: str, spec: ProgramSpec, *, takes_part: bool = True, ranks: Ranks | None = None) -> Client:
        """One more client. ``ranks``: it is one of these."""
        number = len(self._clients)
        program = Program(spec, random.Random(self._workload.seed * 1000 + number))
        reaction, duration = self._workload.device.reaction, self._workload.duration
        client = Client(number, group, program, self, reaction=reaction, duration=duration, ranks=ranks)
        self._clients.append(client)
        if not takes_part:
            return client
        self.at(spec.arrive, lambda: self._enter(client))
        if spec.leave is not None:
            self.at(spec.leave, lambda: self.exit(client))
        return client

    def _enter(self, client: Client) -> None:
        mps = self._workload.device.mps
        client.sm = self._sm[client.group] if mps else 1.0
        self._device.add(client)
        self.arbiter.add_client(client.number, self._groups[client.group], self.now, mps=mps)
        client.enter(self.now)

    def exit(self, client: Client) -> None:
        """The client ends, whatever it does."""
        client.exit(self.now)
        self._device.remove(client)
        self.arbiter.remove_client(client.number, self.now)

    # --- what clients tell ------------------------------------------------------------------------------------------

    def plan(self, client: Client) -> None:
        self._changed[client.number] = client

    def worked(self, client: Client, start: int, end: int, rate: float) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last.client == client.number and last.end == start:
            last.end = end
        else:
            self._runs.append(Run(client.number, start, end))

    def request(self, client: Client) -> None:
        self.arbiter.request(client.number, self.now)

    def took(self, client: Client) -> None:
        self.arbiter.took(client.number, self.now)

    def stopped(self, client: Client, reason: Reason, tail: int, *, wants: bool) -> None:
        self._tell_progress()
        self._tell_progress_of(client)
        self.arbiter.stopped(client.number, reason, tail, self.now)
        if wants:
            self.arbiter.request(client.number, self.now)

    def drained(self, client: Client) -> None:
        self._tell_progress_of(client)
        self.arbiter.drained(client.number, self.now, self.now)

    # --- the arbiter ------------------------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        for client in self._clients:
            if client.token == "runs":
                self._tell_progress_of(client)

    def _tell_progress_of(self, client: Client) -> None:
        client.settle(self.now)
        self.arbiter.progress(client.number, *client.progress())

    def act(self) -> None:
        """Carries out what the arbiter decided."""
        while actions := self.arbiter.take_actions():
            for kind, number, *terms, _shared, _raise in actions:
                client = self._clients[number]
                if kind == "park":
                    client.park(self.now)
                elif kind == "unpark":
                    client.unpark(self.now)
                elif kind == "revoke":  # not a deadline: a hook says at once that it stops, whatever is in flight
                    self._revoke(client)
                else:
                    client.terms(self.now, Terms(*terms))
                    if kind == "grant":
                        client.granted(self.now)

    def _revoke(self, client: Client) -> None:
        self.at(self.now + self._workload.device.reaction, lambda: client.revoked(self.now))

    def sample(self) -> None:
        """Notes how things stand, now and every SAMPLE from then on."""
        rows = {row["name"]: dict(row) for row in self.arbiter.usage(self.now)}
        self._targets.append((self.now, {name: row["target"] for name, row in rows.items()}))
        self._states.append((self.now, rows))
        self.at(self.now + self.SAMPLE, self.sample)


class Conductor(Protocol):
    """Decides for several devices at once."""

    def next_event(self) -> int:
        """When it is to look, whatever happens."""

    def settle(self, now: int) -> None:
        """Something happened, or it is time to look."""


def play(engines: Sequence[Engine], timeline: Timeline, conductor: Conductor | None = None) -> None:
    """Runs the devices of one host to the end of their workloads, which are equally long."""
    end = engines[0].duration
    for engine in engines:
        engine.at(0, engine.sample)
    while True:
        tick = min(engine.arbiter.next_event() for engine in engines)
        if conductor is not None:
            tick = min(tick, conductor.next_event())
        # At the same moment clients come first: a client that stops on time is not late.
        if timeline.next_at() <= tick:
            if timeline.next_at() >= end:
                break
            timeline.step()
        elif tick >= end:
            break
        else:
            timeline.now = tick
            for engine in engines:
                if engine.arbiter.next_event() <= tick:
                    engine.tick()
        if conductor is not None:
            conductor.settle(timeline.now)
        for engine in engines:
            engine.act()
            engine.follow()
    timeline.now = end


def run_alone(workload: Workload, number: int) -> Outcome:
    """One client of the workload with the device to itself: what its speed is measured against."""
    groups = tuple(
        (dataclasses.replace(spec, min=0.0, max=1.0, sm=1.0), programs) for spec, programs in workload.groups
    )
    return Engine(dataclasses.replace(workload, groups=groups, policy=NO_ARBITER), only=number).run()
