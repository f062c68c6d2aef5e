"""The daemon's life: lock, server, configuration, sockets, the tasks around them, and a clean end.

native server   owns clients, pages and deadlines in its own thread
observer.py     sees what they do: snapshots, usage, devices, programs outside, the status
this            begins and ends it all, and does what follows: configuration, groups, events
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from gemlet.accounts import count_users_by
from gemlet.config.rules import EVERYBODY
from gemlet.daemon import notify, saved_groups, succession
from gemlet.daemon.allocator import return_large_blocks
from gemlet.daemon.configuration import ConfigurationFile
from gemlet.daemon.elder import Elder
from gemlet.daemon.events import EventRing
from gemlet.daemon.groups import GroupBook
from gemlet.daemon.known_devices import KnownDevices
from gemlet.daemon.launchers import Launchers
from gemlet.daemon.lock import DirectoryLock
from gemlet.daemon.logs import Limiter
from gemlet.daemon.members import Members
from gemlet.daemon.mps import Mps
from gemlet.daemon.observer import Observer
from gemlet.daemon.processes import has_terminal
from gemlet.daemon.sockets import Sockets
from gemlet.daemon.state_file import StateFile
from gemlet.daemon.subordinate_uids import SubordinateUids
from gemlet.daemon.users import Users
from gemlet.decoding import convert
from gemlet.devices import host_memory
from gemlet.errors import ConfigError, DaemonError, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gemlet.daemon.api import Api
    from gemlet.daemon.group_entry import Entry
    from gemlet.daemon.inventory import Inventory
    from gemlet.daemon.native import Server
    from gemlet.daemon.options import DaemonOptions
    from gemlet.daemon.processes import Peer
    from gemlet.daemon.requests import Limits
    from gemlet.daemon.status import Status
    from gemlet.daemon.succession import Predecessor
    from gemlet.model import Configuration, GroupSpec

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 1.0
MPS_SECONDS = 5.0  # how often to ask the control daemon for its clients
MANY_EVENTS = 100  # at a time, after which there is a pause of EVENTS_PAUSE seconds
EVENTS_PAUSE = 0.1
USERS_SECONDS = 5.0  # for a directory service to say who the users of a configuration are
AGAIN_SECONDS = 1.0  # after which a task that failed is begun anew


async def run_until_signalled(service: Service, handler: Callable[[Service], Api]) -> None:
    """Runs a daemon in the main thread of its own process: SIGTERM, SIGINT and the end of its terminal end it cleanly.

    Where it has no terminal SIGHUP comes from people who mean its configuration, which it reads by itself, and not that
    all programs of a machine are to run on without it.
    """
    return_large_blocks()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        loop.add_signal_handler(signal.SIGHUP, service.stop if has_terminal() else _explain_hangup)
    loop.add_signal_handler(signal.SIGUSR2, service.elder.start_successor)
    await service.run(handler)


def _explain_hangup() -> None:
    logger.info("SIGHUP does nothing here: a changed configuration is read at once; SIGTERM ends the daemon")


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
        metrics: Callable[[Status], str] | None = None,
        beside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.options = options
        self._beside = beside
        self.server = server
        self.users = Users()
        self.subordinates = SubordinateUids(shared=options.shared)
        self._counted = self.subordinates.ranges
        count_users_by(self.subordinates.account)
        self.book = GroupBook(
            server,
            owner=os.getuid(),
            shared=options.shared,
            uid_of=self.users.uid_of,
            name_of=self.users.name_of,
            account=self.subordinates.account,
        )
        self.launchers = Launchers(owner=os.getuid(), account=self.subordinates.account)
        self.events = EventRing()
        self.configuration = ConfigurationFile(options.config, optional=options.config_optional)
        self.devices = KnownDevices(server, inventory)
        self.mps = Mps(options.endpoint.mps, simulated=options.simulated, shared=options.shared)
        self._mps_state = self.mps.look().state
        self._sockets = Sockets(server, ipc_dir=options.ipc_dir, shared=options.shared)
        self._groups_file = StateFile(options.endpoint.state)
        members = StateFile(options.endpoint.members)
        self.observer = Observer(
            options,
            server=server,
            inventory=inventory,
            devices=self.devices,
            mps=self.mps,
            users=self.users,
            account=self.subordinates.account,
            book=self.book,
            configuration=self.configuration,
            events=self.events,
            metrics=metrics,
            state=(self._groups_file, members),
        )
        self._used_at = time.monotonic()
        self._failures = Limiter(per_minute=1)  # of tasks
        self._stop = asyncio.Event()
        self.elder = Elder(
            server, groups=self._living_groups, leaving=self.observer.insiders_are_unknown, stop=self.stop
        )
        self._members = Members(members, server, gone=lambda: self.elder.left)
        self._before: Predecessor | None = None  # until its sockets are ours
        self._may_listen = not options.take_over
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
            if before is None:
                await self.observer.find_devices()
                self._members.expect()
                await self._members.write()  # by the numbers of this one's ledgers, before a member has one
            # From here on a program of the daemon before joins this one before it holds more, so what it holds can be
            # asked for. It does not wait long for an answer: nothing that takes time comes between here and `start`.
            self._sockets.listen(endpoint.clients)
            await self._inherit(before)
            self.server.start()
            if before is not None:
                await asyncio.to_thread(before.commit)
                self.server.govern()
                lock.own()
            try:
                async with handler(self).serve(endpoint.api, mode=mode, replaces=before is not None):
                    if before is not None:
                        await asyncio.to_thread(before.dismiss)
                        before.close()
                        self._before = None
                    if self.options.history is not None:
                        self.observer.recorder.start()
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
                self.observer.recorder.stop()
        logger.info("another daemon has taken over" if self.elder.left else "stopped")

    # --- one daemon after another ----------------------------------------------------------------------------------

    async def _take_over(self, ours: contextlib.ExitStack) -> Predecessor | None:
        """All that takes time comes first, for nobody decides while the daemon before hands over."""
        await self._know_configuration()
        await self.observer.find_devices()
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
        await self._know_subordinates(USERS_SECONDS)
        configuration, saved = self.configuration.load(), saved_groups.load(self._groups_file)
        await self._know_users(configuration, [group.spec for group in saved])
        self._configure(configuration)

    def _know_groups(self, before: Predecessor | None) -> None:
        if before is None:
            saved = saved_groups.load(self._groups_file)
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
            await self.observer.ask_what_is_held()
        else:
            before.bequeath(self.server)
        self.observer.insiders_are_known()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        self._listen_for_events()
        notify.systemd("READY=1")
        notify.starter(self.options.ready_fd)
        where, pid = self.options.endpoint.directory, os.getpid()
        logger.info("started pid=%d directory=%s devices=%d", pid, where, len(self.devices))
        self._warn_of_weak_memory()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._keep_on(name, task), name=name)
                    for name, task in {
                        "samples": self.observer.sample,
                        "moments": self.observer.record,
                        "housekeeping": self._keep_house,
                        "devices": self.observer.watch_devices,
                        "configuration": self._watch_configuration,
                        "accounting": self.observer.account,
                        "members": lambda: self._members.keep(self._members_changed),
                        "mps": self._watch_mps,
                    }.items()
                ]
                await self._stop.wait()
                for task in running:
                    task.cancel()
        finally:
            loop.remove_reader(self.server.eventfd())

    def _warn_of_weak_memory(self) -> None:
        from gemlet._native import can_keep_in_place  # noqa: PLC0415  (the daemon alone has it)

        with contextlib.suppress(RuntimeError):  # for lack of descriptors
            if not self.options.shared or can_keep_in_place():
                return
            logger.warning("a user's program can hold up this daemon: Linux 6.6 and CAP_LINUX_IMMUTABLE prevent that")

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

    # --- what requests ask for -----------------------------------------------------------------------------------

    async def know_users_of(self, peer: Peer, group: str | None, limits: Limits) -> None:
        """Finds out who the users are that a request of ``peer`` is about.

        Raises `DaemonError` if a successor has taken over meanwhile: it would not know what the request changes here.
        """
        there = self.book.entries.get(group) if group else None
        asked_by = self.subordinates.account(peer.uid)
        await self.users.learn([peer.uid, *limits.given().get("users", ())], asked_by=asked_by)
        await self.users.learn(there.spec.users if there else (), all_of_them=True, asked_by=asked_by)
        await self.elder.check_stays()

    def mps_changed(self, text: str, *, pid: int = 0, uid: int = 0) -> None:
        """MPS was started or stopped, or ended by itself."""
        self._mps_state = self.mps.look().state
        self.events.add("mps", time=time.time(), pid=pid, uid=uid, text=text)

    def in_use(self) -> bool:
        """Whether a program uses a group, or is about to, or MPS is on."""
        return self.book.in_use(self.observer.busy()) or self.mps.look().state == "on"

    def remember_groups(self) -> str | None:
        """Keeps the groups made on the fly across a restart. Returns why they could not be written."""
        if not self.elder.left:
            saved_groups.save(self._groups_file, self.book.entries.values(), self.launchers)
        return self._groups_file.failure

    def open_share(
        self, name: str, limits: Limits, *, socket: str, device: int | None, devices: tuple[str, ...] = ()
    ) -> Entry:
        """A group with a socket of its own, opened or changed. Raises `Refused` and `DaemonError`.

        It is written down before anybody relies on it: the daemon after this one would have it with its limits of
        before, or not at all.
        """
        known = self.book.entries.get(name)
        before = (known.spec, known.device, known.devices) if known is not None else None
        entry = self.book.share(name, limits, socket=socket, device=device, devices=devices)
        if not self._sockets.has_share(socket):
            try:
                self._sockets.listen_for_share(name, socket)
            except DaemonError:
                self.book.remove(name, uid=os.getuid())
                raise
        if before != (entry.spec, entry.device, entry.devices) and (failure := self.remember_groups()):
            if before is None:
                self.remove_group(name, uid=os.getuid())
            else:
                self.book.set_share(entry, *before)
            raise Refused(failure, hint="make room on the disk: the share is as it was before")
        return entry

    def remove_group(self, name: str, *, uid: int) -> None:
        """Removes a group and the socket it may have. Raises `Refused` while it has clients."""
        entry = self.book.entries.get(name)
        self.book.remove(name, uid=uid)
        if entry is not None and entry.socket is not None:
            self._sockets.end_share(entry.socket)

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while not self.elder.left:  # with its programs gone, groups would be
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            now, busy = time.monotonic(), self.observer.busy()
            adopted = False
            for name in self.observer.group_names():
                if name not in self.book.entries:  # the server keeps a number of events of each user, and no more
                    adopted |= self._adopt(name)
                    await asyncio.sleep(0)  # programs have made hundreds of them: requests are answered in between
            for _ in self.book.balanced(self.observer.active()):
                await asyncio.sleep(0)
            await self._know_subordinates()
            if self.users.answered_late():
                self._configure(self.configuration.current)
                self.book.retell()
            gone = self.book.expire(now, busy)
            for name in gone:
                self.events.add("removed", time=time.time(), group=name, text="no client uses it any more")
            if gone or adopted or self._groups_file.failure is not None:
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

    async def _watch_mps(self) -> None:
        while True:
            await self.mps.learn()
            await asyncio.sleep(MPS_SECONDS)

    async def _watch_configuration(self) -> None:
        async for change in self.configuration.changes():
            if isinstance(change, ConfigError):
                for error in (change, *change.others):
                    logger.error("configuration %s%s", error, f" (hint: {error.hint})" if error.hint else "")
                self.configuration.error = str(change)
                self.events.add("configuration", time=time.time(), text=f"not applied: {change}")
            else:
                self.configuration.error = None
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
        adopted = False
        for raw in found:
            event = self.events.add_native(raw, time=time.time())
            if event.kind == "join":
                adopted |= self._adopt(event.group, pid=event.pid, uid=event.uid)
            if event.kind in ("context", "join", "leave"):
                self.observer.account_soon()
                self._members_changed.set()
        if adopted:
            self.remember_groups()

    def _adopt(self, group: str, *, pid: int = 0, uid: int = 0) -> bool:
        """Whether the book has it only now, with limits that its programs may not lose with this daemon."""
        known = group in self.book.entries
        try:
            warnings = self.book.adopt(group)
        except Refused as error:
            warnings = [error.message]
        for warning in warnings:
            self.events.add("refused", time=time.time(), group=group, pid=pid, uid=uid, text=warning)
        return not known and group in self.book.entries

    # --- configuration and devices -------------------------------------------------------------------------------

    async def _know_subordinates(self, patience: float = 0.0) -> None:
        await self.subordinates.learn(patience)
        if self.subordinates.ranges != self._counted:
            self._counted = self.subordinates.ranges
            self.server.set_accounts(self._counted)

    async def _know_users(self, configuration: Configuration, others: Sequence[GroupSpec] = ()) -> None:
        """Finds out who the users are that the configuration and ``others`` name."""
        named = [user for group in (*configuration.groups, *others) for user in group.users]
        named += [user.name for user in configuration.users if user.name != EVERYBODY] + [*configuration.audit.allow]
        await self.users.learn(named, patience=USERS_SECONDS, all_of_them=True)

    def _configure(self, configuration: Configuration) -> None:
        self.devices.configure(configuration.devices, self.options.policy or configuration.policy)
        host = host_memory.default_limit(host_memory.available(), host_memory.cgroup_limits())
        self.server.set_host_memory(configuration.host_memory or host)
        warnings = [*configuration.warnings, *self.book.configure(configuration.groups, configuration.users)]
        unaudited = set()
        for user in configuration.audit.allow:
            try:
                unaudited.add(self.users.uid_of(user))
            except Refused as error:
                warnings.append(f"audit: {error.message}")
        self.observer.allow_outside(unaudited)
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

    def movable(self, spec: GroupSpec) -> bool:
        """Whether memory of programs of the group that start now can move, on some device."""
        return spec.resident is not None or self.devices.have_capacity()
