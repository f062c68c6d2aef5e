"""What the daemon sees: what groups use, what the driver says of devices and programs, programs outside, the status.

It looks and tells; what follows from it is decided elsewhere. A look at the native server is a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import gemlet
from gemlet.daemon import protocol, status
from gemlet.daemon.accounting import Accounting
from gemlet.daemon.audit import Audit, named, used_outside
from gemlet.daemon.history_recorder import Recorder
from gemlet.daemon.history_room import HistoryRoom
from gemlet.daemon.history_sampling import Moments
from gemlet.daemon.history_store import Store
from gemlet.daemon.native import Snapshot, read_snapshot
from gemlet.daemon.processes import sees_the_drivers_pids
from gemlet.daemon.programs import PATIENCE, Programs
from gemlet.daemon.recent_usage import SAMPLE_SECONDS, RecentUsage
from gemlet.daemon.shared_status import SharedStatus, in_steps
from gemlet.daemon.totals import Totals
from gemlet.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.configuration import ConfigurationFile
    from gemlet.daemon.events import EventRing
    from gemlet.daemon.groups import GroupBook
    from gemlet.daemon.history_store import Key
    from gemlet.daemon.inventory import Inventory
    from gemlet.daemon.known_devices import KnownDevices
    from gemlet.daemon.mps import Mps
    from gemlet.daemon.native import DeviceUsage, Server
    from gemlet.daemon.options import DaemonOptions
    from gemlet.daemon.state_file import StateFile
    from gemlet.daemon.users import Users

logger = logging.getLogger(__name__)

IDLE_SAMPLE_SECONDS = 1.0
MOMENT_SECONDS = 1.0  # of the history, and of the status that other threads read
MOST_MISSED = 5  # seconds that one moment stands for
DRIVER_SECONDS = 1.0  # how often to ask the driver while devices are used
AUDIT_SECONDS = 0.2  # ... and for audits, which anybody may ask for
ACCOUNT_SECONDS = 0.05  # ... at most, for what it holds for programs: a program may say all the time that it changed
DEVICES_SECONDS = 10.0  # how often to ask for the list of devices again: a driver can come up after the daemon
ACTIVE_SECONDS = 10.0  # for which a group without work counts among those that share its user's weight
EVENTS_IN_STATUS = 20
LONG_LOOK = 0.005  # seconds of the processor for a look at the server, as with hundreds of groups: it holds ...
LOOK_HOLDS = 4  # times as long, so that looks of a kind take a fifth of the daemon's time at most


class Observer:
    """``sample``, `record`, `watch_devices` and `account` are tasks that do not end. ``metrics`` renders the status
    document for Prometheus.

    Groups are looked at all the time, their programs for a document that lists them: users may have thousands.

    snapshot: of the native server's groups, as of the last look. status, summary: documents with and without programs.
    latest: the last summary; it is replaced whole, so
    that other threads may read it.
    """

    def __init__(
        self,
        options: DaemonOptions,
        *,
        server: Server,
        inventory: Inventory,
        devices: KnownDevices,
        mps: Mps,
        users: Users,
        account: Callable[[int], int],
        book: GroupBook,
        configuration: ConfigurationFile,
        events: EventRing,
        metrics: Callable[[status.Status], str] | None,
        state: Sequence[StateFile],
    ) -> None:
        self._options = options
        self._server = server
        self._devices = devices
        self._mps = mps
        self._users = users
        self._book = book
        self._configuration = configuration
        self._events = events
        self._state = state
        self._started = time.monotonic()
        self.snapshot = Snapshot()
        self._look_due = 0.0  # of the next snapshot, by the steady clock
        self.recent_usage = RecentUsage()
        self._totals = Totals()
        self._moments = Moments()
        self._counted_as = account
        self._history_room = HistoryRoom(self._whose)
        self.recorder = Recorder(self._open_history)
        self._accounting = Accounting(server, inventory)
        self._account_now = asyncio.Event()
        self._programs = Programs(account=account)
        self._audit = Audit(
            acts=options.shared or options.simulated,
            simulated=options.simulated,
            name_of=users.name_of,
            account=account,
        )
        self._audit_due = 0.0  # when to ask the driver for one, by the steady clock
        self._knows_insiders = False
        self._sees_outside = options.simulated or sees_the_drivers_pids()
        self._unaudited: set[int] = set()  # uids
        self._outside: list[Outsider] = []
        self.status = SharedStatus(build=self._status, event=events.last, metrics=None)
        self.summary = SharedStatus(build=self._summary, event=events.last, metrics=metrics)
        self.latest: status.Status | None = None

    # --- the native server: who runs, and what groups use --------------------------------------------------------

    def look(self) -> Snapshot:
        """The groups of the native server as they are now, or were a moment ago if looks at them take long."""
        if time.monotonic() < self._look_due:
            return self.snapshot
        began = time.thread_time()  # not on the clock: that others have the processor makes nothing older
        self.snapshot = read_snapshot(self._server, listed=False)
        self._look_due = time.monotonic() + _pause_after(time.thread_time() - began)
        return self.snapshot

    def look_at_programs(self) -> Snapshot:
        """The native server with each program, as it is now."""
        return read_snapshot(self._server, listed=True)

    def busy(self) -> dict[str, int]:
        """Clients by group, now."""
        return self.look().clients_by_group()

    def groups_by_pid(self) -> dict[int, str]:
        """The group of each client, now, and of those that are awaited."""
        return self._server.groups_by_pid()

    def group_names(self) -> set[str]:
        """Groups that a device has, as of the last look."""
        return {group.name for device in self.snapshot.devices for group in device.groups}

    def active(self) -> list[set[str]]:
        """For each device, groups that had work in the last `ACTIVE_SECONDS`, as of the last look."""
        return [self._active(device) for device in self.snapshot.devices]

    def _active(self, device: DeviceUsage) -> set[str]:
        return {
            group.name
            for group in device.groups
            if group.waiting or (self.recent_usage.share((device.uuid, group.name), ACTIVE_SECONDS) or 0) > 0
        }

    def why_no_devices(self) -> str | None:
        """Why no device is known; None if one is, be it from a client, as of the last look at the server (`busy`)."""
        return None if self._devices or self.snapshot.devices else self._devices.problem

    def multiprocessors(self) -> dict[str, int]:
        """How many each device has, by UUID, where the driver tells."""
        return {device.uuid: device.multiprocessors for device in self._devices.listed() if device.multiprocessors}

    def context_size(self) -> int:
        """Bytes that one context takes where it takes least, as of the last look; 0 before one was measured."""
        return min((device.context_estimate for device in self.snapshot.devices), default=0)

    async def sample(self) -> None:
        """Keeps what groups use: ten times a second while there are programs."""
        while True:
            began = time.thread_time()
            self.recent_usage.add(self.look())
            # Other groups stay for seconds after their last program, so that what is counted once a second is all.
            if any(group.made_by_client for device in self.snapshot.devices for group in device.groups):
                self._count()
            self._moments.look(self.snapshot)
            in_use = any(self.snapshot.clients_by_group().values())
            pause = SAMPLE_SECONDS if in_use else IDLE_SAMPLE_SECONDS
            await asyncio.sleep(max(pause, _pause_after(time.thread_time() - began)))

    def _count(self) -> None:
        entries = self._book.entries
        self._totals.add(
            self.snapshot, self.recent_usage.total, lambda name: entries[name].named if name in entries else True
        )

    # --- the recorded history ------------------------------------------------------------------------------------

    async def record(self) -> None:
        """Keeps a moment of each second for `gemlet history`."""
        last = int(time.time())
        while True:
            await asyncio.sleep(MOMENT_SECONDS - time.time() % MOMENT_SECONDS)
            now_s = time.monotonic()
            groups, devices = self._moments.take((await self.summary.get(anew=True)).status, now_s)
            groups, devices = (self._history_room.kept(found, now_s) for found in (groups, devices))
            now = round(time.time())
            # A daemon that got no processor for a while knows what was used in the seconds that it missed.
            for second in range(max(min(last + 1, now), now - MOST_MISSED), now + 1):
                self.recorder.add(second, groups, devices)
            last = now

    def _whose(self, key: Key) -> Hashable:
        """By whom what is recorded is counted: a group by its user, a device that programs have made up by nobody."""
        device, group = key
        if not group:
            return device if any(info.uuid == device for info in self._devices.listed()) else None
        entry = self._book.entries.get(group)
        return None if entry is None or entry.owner is None else self._counted_as(entry.owner)

    def _open_history(self) -> Store:
        assert self._options.history is not None
        return Store(self._options.history)

    # --- the driver: devices, how busy they are, and what it holds for programs ----------------------------------

    async def find_devices(self) -> bool:
        """Asks the driver for its devices and the programs on them. Whether it answers."""
        answered = await self._devices.find()
        if answered:
            self._look_outside()
        return answered

    async def watch_devices(self) -> None:
        """Follows what the driver says of devices, and divides the time in which it finds them busy among groups."""
        asked_at = counted_at = time.monotonic()
        while True:
            await asyncio.sleep(DRIVER_SECONDS)
            # In short steps, so that a program that has just begun to use a device sees at once how busy and how full
            # it is, and that a device does not seem busy long after its last program.
            used = self._devices.seem_busy() or self._book.in_use(self.busy())
            answered = True
            if used or time.monotonic() - asked_at >= DEVICES_SECONDS:
                answered = await self.find_devices()
                asked_at = time.monotonic()
                if answered:
                    self._divide_busy_time(asked_at - counted_at)
            if answered:
                counted_at = time.monotonic()

    def _divide_busy_time(self, seconds: float) -> None:
        """Of the last ``seconds``, by what groups have used until now: the driver has just said how busy it is."""
        self.look()
        self._count()
        outside = used_outside(self._outside)
        self._totals.spread(
            seconds,
            {uuid: known.utilization for uuid, known in self._devices.by_uuid.items()},
            {uuid for uuid, known in self._devices.by_uuid.items() if known.index in outside},
        )

    def account_soon(self) -> None:
        """A program has come, gone or made a context."""
        self._account_now.set()

    async def account(self) -> None:
        """Keeps the server informed of what the driver holds for each program."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRIVER_SECONDS):
                    await self._account_now.wait()
            self._account_now.clear()
            began = time.thread_time()
            if not await self.ask_what_is_held():
                await asyncio.sleep(DEVICES_SECONDS)
            await asyncio.sleep(max(ACCOUNT_SECONDS, _pause_after(time.thread_time() - began)))

    async def ask_what_is_held(self) -> bool:
        """Asks the driver, and tells the server. False if the driver does not answer."""
        before = self.look_at_programs()
        try:
            held = await asyncio.to_thread(self._accounting.held, before)
        except DeviceError as error:
            logger.debug("accounting: %s", error)
            return False
        await self._mps.find_foreign()
        # Under MPS a driver may list the server in place of its clients.
        mps = self._mps.look()
        lists_all = self._sees_outside and mps.state == "off" and not mps.foreign
        self._accounting.book(before, self.look_at_programs(), held, lists_all=lists_all)
        return True

    # --- programs outside ----------------------------------------------------------------------------------------

    def allow_outside(self, uids: set[int]) -> None:
        """Users whose programs outside gemlet are only listed."""
        self._unaudited = uids

    def insiders_are_known(self) -> None:
        """From now on a program that the server does not know is outside."""
        self._knows_insiders = True
        self._look_outside()

    def insiders_are_unknown(self) -> None:
        """The programs are another daemon's, and none of them may be taken for one outside."""
        self._knows_insiders = False

    def _look_outside(self) -> None:
        # Elsewhere a pid of the driver's would be that of another process.
        if not self._sees_outside or not self._knows_insiders:
            return
        insiders = {*self.groups_by_pid(), *(server.pid for server in self._mps.look().servers)}
        self._outside, news = self._audit.look(
            self._devices.listed(),
            insiders,
            self._configuration.current.audit,
            allowed=self._unaudited,
            now=time.monotonic() - self._started,
        )
        for outsider in news:
            device = f"device {outsider.device}"
            text = f"{outsider.action}: it used {device}" if outsider.action else f"uses {device} outside gemlet"
            self._events.add(
                "outside",
                time=time.time(),
                pid=outsider.pid,
                uid=outsider.uid,
                command=outsider.command,
                device=outsider.device,
                text=text,
            )

    # --- documents -----------------------------------------------------------------------------------------------

    async def audit(self) -> dict[str, Any]:
        """The document of `gemlet audit -o json`, as of now."""
        if time.monotonic() >= self._audit_due:
            self._audit_due = time.monotonic() + AUDIT_SECONDS
            await self.find_devices()
        else:
            self._look_outside()
        await self._know_programs(self.look_at_programs())
        return {
            "schema": protocol.AUDIT_SCHEMA,
            "simulated": self._options.simulated,
            "policy": self._configuration.current.audit.policy,
            "outside": [named(who, self._programs.find(who.key)) for who in self._outside],
        }

    async def _know_programs(self, snapshot: Snapshot) -> None:
        """Finds out what the programs and users are called that a status of ``snapshot`` names."""
        await self._programs.settle(status.program_keys(snapshot, self._outside))
        await self._users.learn(status.uids(snapshot), patience=PATIENCE)

    async def _status(self) -> status.Status:
        snapshot = self.look_at_programs()
        await self._know_programs(snapshot)
        return await self._document(snapshot)

    async def _summary(self) -> status.Status:
        self.latest = await self._document(self.look())
        return self.latest

    async def _document(self, snapshot: Snapshot) -> status.Status:
        self.look()
        self._count()
        options = self._options
        steps = status.build(
            snapshot,
            daemon=status.DaemonStatus(
                pid=os.getpid(),
                version=gemlet.__version__,
                kind=options.endpoint.kind,
                directory=str(options.endpoint.directory),
                config=self._configuration.source,
                config_error=self._configuration.error,
                policy=options.policy or self._configuration.current.policy,
                uptime_s=time.monotonic() - self._started,
                denied=snapshot.denied,
                ignored=sum(device.ignored for device in snapshot.devices),
                history=self.recorder.failure,
                state_error=next((file.failure for file in self._state if file.failure is not None), None),
            ),
            simulated=options.simulated,
            inventory=self._devices.by_uuid,
            entries=self._book.entries,
            recent=self.recent_usage,
            events=self._events.after(0, EVENTS_IN_STATUS),
            mps=self._mps.look(),
            outside=self._outside,
            names=status.Names(self._programs, self._users.name_of),
            totals=self._totals,
        )
        return await in_steps(steps)


def _pause_after(took: float) -> float:
    """Seconds after a look that took ``took`` of the processor; see `LONG_LOOK`."""
    return LOOK_HOLDS * took if took > LONG_LOOK else 0.0
