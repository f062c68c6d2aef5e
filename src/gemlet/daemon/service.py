"""The daemon's life: lock, server, configuration, sockets, the tasks around them, and a clean end.

native server   owns clients, pages and deadlines in its own thread
this            configuration, groups, devices, samples, events, the API
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gemlet
from gemlet.config.rules import EVERYBODY
from gemlet.daemon import notify, protocol, saved_groups, status, succession
from gemlet.daemon.accounting import Accounting
from gemlet.daemon.allocator import return_large_blocks
from gemlet.daemon.audit import Audit, named, used_outside
from gemlet.daemon.configuration import ConfigurationFile
from gemlet.daemon.elder import Elder
from gemlet.daemon.events import EventRing
from gemlet.daemon.groups import Entry, GroupBook
from gemlet.daemon.history_recorder import Recorder
from gemlet.daemon.history_sampling import Moments
from gemlet.daemon.history_store import Store
from gemlet.daemon.known_devices import KnownDevices
from gemlet.daemon.launchers import Launchers
from gemlet.daemon.lock import DirectoryLock
from gemlet.daemon.logs import Limiter
from gemlet.daemon.members import Members
from gemlet.daemon.mps import Mps
from gemlet.daemon.native import Server, Snapshot, read_snapshot
from gemlet.daemon.processes import sees_the_drivers_pids
from gemlet.daemon.programs import PATIENCE, Programs
from gemlet.daemon.recent_usage import SAMPLE_SECONDS, RecentUsage
from gemlet.daemon.shared_status import SharedStatus
from gemlet.daemon.sockets import Sockets
from gemlet.daemon.totals import Totals
from gemlet.daemon.users import Users
from gemlet.decoding import convert
from gemlet.devices import host_memory
from gemlet.errors import ConfigError, DaemonError, DeviceError, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gemlet.daemon.address import Endpoint
    from gemlet.daemon.api import Api
    from gemlet.daemon.audit import Outsider
    from gemlet.daemon.inventory import Inventory
    from gemlet.daemon.native import DeviceUsage
    from gemlet.daemon.processes import Peer
    from gemlet.daemon.requests import Limits
    from gemlet.daemon.succession import Predecessor
    from gemlet.model import Configuration, GroupSpec

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 1.0
MOST_MISSED = 5  # seconds that one moment stands for
MOMENT_SECONDS = 1.0  # of the history, and of the status that other threads read
IDLE_SAMPLE_SECONDS = 1.0
DEVICES_SECONDS = 10.0  # how often to ask for the list of devices again: a driver can come up after the daemon
MPS_SECONDS = 5.0  # how often to ask the control daemon for its clients
EVENTS_IN_STATUS = 20
MANY_EVENTS = 100  # at a time, after which there is a pause of EVENTS_PAUSE seconds
EVENTS_PAUSE = 0.1
USERS_SECONDS = 5.0  # for a directory service to say who the users of a configuration are
AGAIN_SECONDS = 1.0  # after which a task that failed is begun anew
ACTIVE_SECONDS = 10.0  # for which a group without work counts among those that share its user's weight


async def run_until_signalled(service: Service, handler: Callable[[Service], Api]) -> None:
    """Runs a daemon in the main thread of its own process: SIGTERM and SIGINT end it cleanly."""
    return_large_blocks()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    loop.add_signal_handler(signal.SIGUSR2, service.elder.start_successor)
    await service.run(handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """How a daemon runs. ``idle_exit``: seconds without use after which it ends, None for never. ``history``: the file
    of the recorded history, None for none. ``take_over``: from the daemon that runs there, if one does."""

    endpoint: Endpoint
    config: str | None = None
    config_optional: bool = False
    policy: str | None = None
    ipc_dir: Path | None = None
    simulated: bool = False
    shared: bool = False
    idle_exit: float | None = None
    ready_fd: int | None = None
    take_over: bool = False
    history: Path | None = None


class Service:
    """One daemon. ``metrics`` renders the status document for Prometheus, ``beside`` is entered while the daemon runs
    and no other does in its directory; both live in a layer above this one.
    """

    def __init__(
        self,
        options: DaemonOptions,
        *,
        server: Server,
        inventory: Inventory,
        metrics: Callable[[status.Status], str] | None = None,
        beside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.options = options
        self._beside = beside
        self.server = server
        self.users = Users()
        self.book = GroupBook(
            server, owner=os.getuid(), shared=options.shared, uid_of=self.users.uid_of, name_of=self.users.name_of
        )
        self.launchers = Launchers(owner=os.getuid())
        self.recent_usage = RecentUsage()
        self._totals = Totals()
        self.recorder = Recorder(self._open_history)
        self._moments = Moments()
        self.events = EventRing()
        self.configuration = ConfigurationFile(options.config, optional=options.config_optional)
        self._config_error: str | None = None
        self.devices = KnownDevices(server, inventory)
        self._accounting = Accounting(server, inventory)
        self.mps = Mps(options.endpoint.mps, simulated=options.simulated, shared=options.shared)
        self._mps_state = self.mps.look().state
        self._audit = Audit(
            acts=options.shared or options.simulated, simulated=options.simulated, name_of=self.users.name_of
        )
        self._knows_insiders = False
        self._sees_outside = options.simulated or sees_the_drivers_pids()
        self._unaudited: set[int] = set()  # uids
        self._outside: list[Outsider] = []
        self._programs = Programs()
        self._sockets = Sockets(server, ipc_dir=options.ipc_dir, shared=options.shared)
        self.status = SharedStatus(
            prepare=self._know_programs, build=self._status, event=self.events.last, metrics=metrics
        )
        self._started = time.monotonic()
        self._used_at = self._started
        self._snapshot = Snapshot()
        self.latest: status.Status | None = None  # replaced whole, so that other threads may read it
        self._groups_unwritten = False  # a disk was full
        self._failures = Limiter(per_minute=1)  # of tasks
        self._stop = asyncio.Event()
        self.elder = Elder(server, groups=self._living_groups, stop=self.stop)
        self._members = Members(options.endpoint.members, server, gone=lambda: self.elder.left)
        self._before: Predecessor | None = None  # until its sockets are ours
        self._may_listen = not options.take_over
        self._account_now = asyncio.Event()
        self._members_changed = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self, handler: Callable[[Service], Api]) -> None:
        """Runs until `stop` or idleness.

        Raises `AlreadyRunning`, `ConfigError` for a configuration that is wrong from the start, and OSError.
        """
        endpoint = self.options.endpoint
        mode = 0o666 if self.options.shared else 0o600
        with contextlib.ExitStack() as ours:
            before = await self._take_over(ours) if self.options.take_over else None
            if before is not None:  # until it leaves, what is in the file system is its own
                ours.callback(self._step_back)
            lock = ours.enter_context(DirectoryLock(endpoint, before.lock if before else None))
            self.elder.lock = lock
            if not self.options.take_over:
                await self._know_configuration()
            self._may_listen = True
            self._know_groups(before)
            self._mps_state = self.mps.restore().state
            self._sockets.listen(endpoint.clients)
            await self._inherit(before)
            self.server.start()
            if before is not None:
                await asyncio.to_thread(before.commit)
                lock.own()
            try:
                async with handler(self).serve(endpoint.api, mode=mode, replaces=before is not None):
                    if before is not None:
                        await asyncio.to_thread(before.dismiss)
                        before.close()
                        self._before = None
                    if self.options.history is not None:
                        self.recorder.start()
                    try:
                        with self._beside():
                            await self._supervise()
                    finally:
                        if not self.elder.left:
                            await self.mps.let_go()  # while who asked for the end still waits for it
            finally:
                if not self.elder.left:
                    notify.systemd("STOPPING=1")
                    await self._members.write()
                    self.server.stop()
                    self._sockets.remove_configured()
                self.recorder.stop()
        logger.info("another daemon has taken over" if self.elder.left else "stopped")

    # --- one daemon after another ----------------------------------------------------------------------------------

    async def _take_over(self, ours: contextlib.ExitStack) -> Predecessor | None:
        """All that takes time comes first, for nobody decides while the daemon before hands over."""
        await self._know_configuration()
        await self._find_devices()
        found = await asyncio.to_thread(succession.take_over, self.options.endpoint)
        if found is None:
            logger.info("no daemon runs in %s: nothing to take over", self.options.endpoint.directory)
            return None
        self._before = ours.enter_context(found)
        for path, descriptor in found.listeners.items():
            self.server.inherit_listener(path, descriptor)
        return found

    def _step_back(self) -> None:
        if self.elder.lock is None or self.elder.lock.yields:
            self.server.leave()

    def _living_groups(self) -> list[saved_groups.Saved]:
        return saved_groups.living(self.book.entries.values(), self.configuration.current.groups, self.launchers)

    async def _know_configuration(self) -> None:
        configuration, saved = self.configuration.load(), saved_groups.load(self.options.endpoint.state)
        await self._know_users(configuration, [group.spec for group in saved])
        self._configure(configuration)

    def _know_groups(self, before: Predecessor | None) -> None:
        if before is None:
            saved = saved_groups.load(self.options.endpoint.state)
        else:
            saved = convert(before.groups, list[saved_groups.Saved])
        for group in saved:
            if group.configured is None:
                self._restore(group)
            else:
                self.book.keep_changed(group.spec, configured=group.configured)
        if self.options.take_over:
            for warning in self._listen_for_configured(self.configuration.current):
                logger.warning("configuration %s", warning)

    async def _inherit(self, before: Predecessor | None) -> None:
        """The programs of the daemon before, which may be dead; since then it is known who is inside."""
        if before is None:
            await self._find_devices()
            self._members.expect()
            await self._ask_what_is_held()
        else:
            before.bequeath(self.server)
        self._knows_insiders = True
        self._look_outside()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        self._listen_for_events()
        notify.systemd("READY=1")
        notify.starter(self.options.ready_fd)
        where, pid = self.options.endpoint.directory, os.getpid()
        logger.info("started pid=%d directory=%s devices=%d", pid, where, len(self.devices))
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._keep_on(name, task), name=name)
                    for name, task in {
                        "samples": self._sample,
                        "moments": self._record,
                        "housekeeping": self._keep_house,
                        "devices": self._watch_devices,
                        "configuration": self._watch_configuration,
                        "accounting": self._account,
                        "members": lambda: self._members.keep(self._members_changed),
                        "mps": self._watch_mps,
                    }.items()
                ]
                await self._stop.wait()
                for task in running:
                    task.cancel()
        finally:
            loop.remove_reader(self.server.eventfd())

    async def _keep_on(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Runs ``task`` again if it fails, be it a defect or that the system has no thread, file or memory left just
        now: programs need the daemon all the same.
        """
        while True:
            try:
                return await task()
            except Exception:
                write, held_back = self._failures.allow(name, now=time.monotonic())
                if write:
                    logger.exception("%s failed and is begun anew, after %d failures not told", name, held_back)
            await asyncio.sleep(AGAIN_SECONDS)

    def stop(self) -> None:
        """Ends `run`; programs run on unmanaged."""
        self._stop.set()

    # --- what it knows -------------------------------------------------------------------------------------------

    async def _know_programs(self) -> None:
        """Finds out what the programs and users are called that the next status names."""
        self._refresh()
        await self._programs.settle(status.program_keys(self._snapshot, self._outside))
        await self.users.learn(status.uids(self._snapshot), patience=PATIENCE)

    async def know_users_of(self, peer: Peer, group: str | None, limits: Limits) -> None:
        """Finds out who the users are that a request of ``peer`` is about."""
        there = self.book.entries.get(group) if group else None
        await self.users.learn([peer.uid, *limits.given().get("users", ())])
        await self.users.learn(there.spec.users if there else (), all_of_them=True)

    async def _know_users(self, configuration: Configuration, others: Sequence[GroupSpec] = ()) -> None:
        """Finds out who the users are that the configuration and ``others`` name."""
        named = [user for group in (*configuration.groups, *others) for user in group.users]
        named += [user.name for user in configuration.users if user.name != EVERYBODY] + [*configuration.audit.allow]
        await self.users.learn(named, patience=USERS_SECONDS, all_of_them=True)

    def _status(self) -> status.Status:
        self._refresh()
        self._count()
        self._programs.ask(status.program_keys(self._snapshot, self._outside))
        options = self.options
        self.latest = status.build(
            self._snapshot,
            daemon=status.DaemonStatus(
                pid=os.getpid(),
                version=gemlet.__version__,
                kind=options.endpoint.kind,
                directory=str(options.endpoint.directory),
                config=self.configuration.source,
                config_error=self._config_error,
                policy=options.policy or self.configuration.current.policy,
                uptime_s=time.monotonic() - self._started,
                denied=self._snapshot.denied,
                ignored=sum(device.ignored for device in self._snapshot.devices),
                history=self.recorder.failure,
            ),
            simulated=options.simulated,
            inventory=self.devices.by_uuid,
            entries=self.book.entries,
            recent=self.recent_usage,
            events=self.events.after(0, EVENTS_IN_STATUS),
            mps=self.mps.look(),
            outside=self._outside,
            names=status.Names(self._programs, self.users.name_of),
            totals=self._totals,
        )
        return self.latest

    async def audit(self) -> dict[str, Any]:
        """The document of `gemlet audit -o json`, as of now."""
        await self._find_devices()
        await self._know_programs()
        return {
            "schema": protocol.AUDIT_SCHEMA,
            "simulated": self.options.simulated,
            "policy": self.configuration.current.audit.policy,
            "outside": [named(who, self._programs.find(who.key)) for who in self._outside],
        }

    def busy(self) -> dict[str, int]:
        """Clients by group, now."""
        self._refresh()
        return self._snapshot.clients_by_group()

    def groups_by_pid(self) -> dict[int, str]:
        """The group of each client, now, and of those that are awaited."""
        self._refresh()
        groups = [group for device in self._snapshot.devices for group in device.groups]
        awaited = {process.pid: group.name for group in groups for process in group.awaited}
        return awaited | {client.pid: group.name for group in groups for client in group.clients}

    def mps_changed(self, text: str, *, pid: int = 0, uid: int = 0) -> None:
        """MPS was started or stopped, or ended by itself."""
        self._mps_state = self.mps.look().state
        self.events.add("mps", time=time.time(), pid=pid, uid=uid, text=text)

    def why_no_devices(self) -> str | None:
        """Why no device is known; None if one is, be it from a client, as of the last look at the server (`busy`)."""
        return None if self.devices or self._snapshot.devices else self.devices.problem

    def context_size(self) -> int:
        """Bytes that one context takes where it takes least, as of the last look; 0 before one was measured."""
        return min((device.context_estimate for device in self._snapshot.devices), default=0)

    def in_use(self) -> bool:
        """Whether a program uses a group, or is about to, or MPS is on."""
        return self.book.in_use(self.busy()) or self.mps.look().state == "on"

    def _refresh(self) -> None:
        self._snapshot = read_snapshot(self.server)

    def remember_groups(self) -> None:
        """Keeps the groups made on the fly across a restart."""
        try:
            saved_groups.save(self.options.endpoint.state, self.book.entries.values(), self.launchers)
            self._groups_unwritten = False
        except OSError as error:
            if not self._groups_unwritten:
                logger.warning("state file=%s cannot be written: %s", self.options.endpoint.state, error)
            self._groups_unwritten = True

    def open_share(self, name: str, limits: Limits, *, socket: str, device: int | None) -> Entry:
        """A group with a socket of its own, opened or changed. Raises `Refused` and `DaemonError`."""
        entry = self.book.share(name, limits, socket=socket, device=device)
        if not self._sockets.has_share(socket):
            try:
                self._sockets.listen_for_share(name, socket)
            except DaemonError:
                self.book.remove(name, uid=os.getuid())
                raise
        return entry

    def remove_group(self, name: str, *, uid: int) -> None:
        """Removes a group and the socket it may have. Raises `Refused` while it has clients."""
        entry = self.book.entries.get(name)
        self.book.remove(name, uid=uid)
        if entry is not None and entry.socket is not None:
            self._sockets.end_share(entry.socket)

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            self._refresh()
            self.recent_usage.add(self._snapshot)
            # Other groups stay for seconds after their last program, so that what is counted once a second is all.
            if any(group.made_by_client for device in self._snapshot.devices for group in device.groups):
                self._count()
            self._moments.look(self._snapshot)
            in_use = any(self._snapshot.clients_by_group().values())
            await asyncio.sleep(SAMPLE_SECONDS if in_use else IDLE_SAMPLE_SECONDS)

    def _count(self) -> None:
        entries = self.book.entries
        self._totals.add(
            self._snapshot, self.recent_usage.total, lambda name: entries[name].named if name in entries else True
        )

    async def _record(self) -> None:
        last = int(time.time())
        while True:
            await asyncio.sleep(MOMENT_SECONDS - time.time() % MOMENT_SECONDS)
            now_s = time.monotonic()
            groups, devices = self._moments.take((await self.status.get(anew=True)).status, now_s)
            now = round(time.time())
            # A daemon that got no processor for a while knows what was used in the seconds that it missed.
            for second in range(max(min(last + 1, now), now - MOST_MISSED), now + 1):
                self.recorder.add(second, groups, devices)
            last = now

    def _open_history(self) -> Store:
        assert self.options.history is not None
        return Store(self.options.history)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            now, busy = time.monotonic(), self.busy()
            for name in {group.name for device in self._snapshot.devices for group in device.groups}:
                self._adopt(name)  # the server keeps a number of events of each user, and no more
            self.book.balance([self._active(device) for device in self._snapshot.devices])
            if self.users.answered_late():
                self._configure(self.configuration.current)
                self.book.retell()
            gone = self.book.expire(now, busy)
            for name in gone:
                self.events.add("removed", time=time.time(), group=name, text="no client uses it any more")
            if gone or self._groups_unwritten:
                self.remember_groups()
            state = self.mps.look().state
            if state != self._mps_state and state == "failed":
                self.mps_changed("the control daemon ended unexpectedly; programs take turns")
            if self.in_use():  # nobody but `gemlet mps stop` stops MPS
                self._used_at = now
            idle_exit = self.options.idle_exit
            if idle_exit is not None and now - self._used_at >= idle_exit:
                logger.info("idle for %.0f s", now - self._used_at)
                self.stop()

    def _active(self, device: DeviceUsage) -> set[str]:
        """Groups that had work on a device in the last `ACTIVE_SECONDS`."""
        return {
            group.name
            for group in device.groups
            if group.waiting or (self.recent_usage.share((device.uuid, group.name), ACTIVE_SECONDS) or 0) > 0
        }

    async def _watch_devices(self) -> None:
        asked_at = counted_at = time.monotonic()
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            # In short steps, so that a program that has just begun to use a device sees at once how busy and how full
            # it is, and that a device does not seem busy long after its last program.
            used = self.devices.seem_busy() or self.book.in_use(self.busy())
            answered = True
            if used or time.monotonic() - asked_at >= DEVICES_SECONDS:
                answered = await self._find_devices()
                asked_at = time.monotonic()
                if answered:
                    self._divide_busy_time(asked_at - counted_at)
            if answered:
                counted_at = time.monotonic()

    def _divide_busy_time(self, seconds: float) -> None:
        """Of the last ``seconds``, by what groups have used until now: the driver has just said how busy it is."""
        self._refresh()
        self._count()
        outside = used_outside(self._outside)
        self._totals.spread(
            seconds,
            {uuid: known.utilization for uuid, known in self.devices.by_uuid.items()},
            {uuid for uuid, known in self.devices.by_uuid.items() if known.index in outside},
        )

    async def _account(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_SECONDS):
                    await self._account_now.wait()
            self._account_now.clear()
            if not await self._ask_what_is_held():
                await asyncio.sleep(DEVICES_SECONDS)

    async def _ask_what_is_held(self) -> bool:
        """Asks the driver, and tells the server. False if the driver does not answer."""
        self._refresh()
        before = self._snapshot
        try:
            held = await asyncio.to_thread(self._accounting.held, before)
        except DeviceError as error:
            logger.debug("accounting: %s", error)
            return False
        self._refresh()
        # Under MPS a driver may list the server in place of its clients.
        mps = self.mps.look()
        lists_all = self._sees_outside and mps.state == "off" and not mps.foreign
        self._accounting.book(before, self._snapshot, held, lists_all=lists_all)
        return True

    async def _watch_mps(self) -> None:
        while True:
            await self.mps.learn()
            await asyncio.sleep(MPS_SECONDS)

    async def _watch_configuration(self) -> None:
        async for change in self.configuration.changes():
            if isinstance(change, ConfigError):
                for error in (change, *change.others):
                    logger.error("configuration %s%s", error, f" (hint: {error.hint})" if error.hint else "")
                self._config_error = str(change)
                self.events.add("configuration", time=time.time(), text=f"not applied: {change}")
            else:
                self._config_error = None
                await self._know_users(change)
                self._configure(change)
                self.events.add("configuration", time=time.time(), text=f"applied {change.source}")

    def _listen_for_events(self) -> None:
        if not self._stop.is_set():
            asyncio.get_running_loop().add_reader(self.server.eventfd(), self._take_events)

    def _take_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.server.eventfd(), 8)
        found = self.server.take_events()
        if len(found) >= MANY_EVENTS and not self._stop.is_set():  # the loop is for others, too
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.server.eventfd())
            loop.call_later(EVENTS_PAUSE, self._listen_for_events)
        for raw in found:
            event = self.events.add_native(raw, time=time.time())
            if event.kind == "join":
                self._adopt(event.group, pid=event.pid, uid=event.uid)
            if event.kind in ("context", "join", "leave"):
                self._account_now.set()
                self._members_changed.set()

    def _adopt(self, group: str, *, pid: int = 0, uid: int = 0) -> None:
        try:
            warnings = self.book.adopt(group)
        except Refused as error:
            warnings = [error.message]
        for warning in warnings:
            self.events.add("refused", time=time.time(), group=group, pid=pid, uid=uid, text=warning)

    # --- configuration and devices -------------------------------------------------------------------------------

    def _configure(self, configuration: Configuration) -> None:
        self.devices.configure(configuration.devices, self.options.policy or configuration.policy)
        host = host_memory.default_limit(host_memory.available(), host_memory.cgroup_limits())
        self.server.set_host_memory(configuration.host_memory or host)
        warnings = [*configuration.warnings, *self.book.configure(configuration.groups, configuration.users)]
        self._unaudited = set()
        for user in configuration.audit.allow:
            try:
                self._unaudited.add(self.users.uid_of(user))
            except Refused as error:
                warnings.append(f"audit: {error.message}")
        if self._may_listen:
            warnings += self._listen_for_configured(configuration)
        for warning in warnings:
            logger.warning("configuration %s", warning)

    def _listen_for_configured(self, configuration: Configuration) -> list[str]:
        inherited = self._before.listeners if self._before is not None else {}
        return self._sockets.listen_for_configured({group.name for group in configuration.groups}, inherited=inherited)

    def _restore(self, group: saved_groups.Saved) -> None:
        entry = group.entry()
        entry.launchers += [launcher for told in group.launchers if (launcher := self.launchers.back(told))]
        try:
            self.book.restore(entry)
            if entry.socket is not None:
                self._sockets.listen_for_share(entry.spec.name, entry.socket)
        except (Refused, DaemonError) as error:
            logger.warning("state group=%s not restored: %s", entry.spec.name, error)

    async def _find_devices(self) -> bool:
        """Whether the driver answers."""
        answered = await self.devices.find()
        if answered:
            self._look_outside()
        return answered

    def _look_outside(self) -> None:
        # Elsewhere a pid of the driver's would be that of another process.
        if not self._sees_outside or not self._knows_insiders:
            return
        mps = self.mps.look()
        insiders = {*self.groups_by_pid(), *(server.pid for server in mps.servers)}
        self._outside, news = self._audit.look(
            self.devices.listed(),
            insiders,
            self.configuration.current.audit,
            allowed=self._unaudited,
            now=time.monotonic() - self._started,
        )
        for outsider in news:
            device = f"device {outsider.device}"
            text = f"{outsider.action}: it used {device}" if outsider.action else f"uses {device} outside gemlet"
            self.events.add(
                "outside",
                time=time.time(),
                pid=outsider.pid,
                uid=outsider.uid,
                command=outsider.command,
                device=outsider.device,
                text=text,
            )

    def movable(self, spec: GroupSpec) -> bool:
        """Whether memory of programs of the group that start now can move, on some device."""
        return spec.resident is not None or self.devices.have_capacity()
