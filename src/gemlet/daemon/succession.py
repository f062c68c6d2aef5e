"""One daemon follows another under programs that run: `gemlet daemon --take-over`.

elder                                                  successor
                                                       knows configuration and devices
                <- request `take_over` over the API -- listens at a socket of its own
stops its native thread
connects, sends what it has, with descriptors --->     groups, sockets, ledgers: inherits
                                           <- ready -- runs: programs join it
leaves: programs find their connections closed
                                            left -->   listens at the API's path
                                            <- done --
ends                                                   begins to record

Until `ready` the elder can go on as if nothing had happened, and does if the successor fails. One item is a packet of
JSON with its descriptors. docs/daemon.md says what programs notice. Each end knows by SO_PEERCRED that the other is the
very process that asked, or was asked. That it is root would not do: so is root in a container that has the directory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon.connection import Connection, connect_in_turn
from gemlet.daemon.processes import peer_of
from gemlet.decoding import from_json
from gemlet.errors import DaemonError, DaemonUnreachable
from gemlet.readiness import await_readable
from gemlet.typed_command import command

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from gemlet.daemon.address import Endpoint
    from gemlet.daemon.native import Server
    from gemlet.daemon.processes import Peer

logger = logging.getLogger(__name__)

FORM = 2  # of the packets; a successor of another form is refused, and the elder goes on
SECONDS = 10.0  # for each step of the other side
MAX_PACKET = 128 * 1024  # as Linux takes them by default
ENDS_WITHIN = 1.0  # seconds; one that was killed leaves its sockets before the kernel says that it ended
LOOK_AGAIN = 0.02  # seconds
BACKLOG = 16  # the daemon before, and who comes unasked
READY, LEFT, DONE = b"ready", b"left", b"done"


def _failed(what: str) -> DaemonError:
    return DaemonError(f"the take-over failed: {what}", hint="read the logs of both daemons; the one before goes on")


# --- the elder -------------------------------------------------------------------------------------------------------


def give(channel: socket.socket, server: Server, *, groups: list[dict[str, Any]], lock: int) -> None:
    """Stops ``server`` and sends all to the successor; returns once that runs. Blocks. Raises `DaemonError`: the server
    has been started again. ``groups``: as saved_groups.py writes them. ``lock``: descriptor of the directory's lock.
    """
    while not server.knows_members():  # two seconds at most: what they tell is for this daemon
        time.sleep(LOOK_AGAIN)
    estate = server.hand_over()
    try:
        _send(channel, {"kind": "lock", "form": FORM}, lock)
        for group in groups:
            _send(channel, {"kind": "group", "group": group})
        for listener in estate["listeners"]:
            _send(channel, {"kind": "listener", "path": listener["path"]}, listener["fd"])
        for ledger in estate["ledgers"]:
            image = {name: ledger[name] for name in ("index", "context_estimate", "group")}
            _send(channel, {"kind": "ledger", "device": ledger["device"].hex()} | image, ledger["fd"])
            for slot in ledger["slots"]:
                told = {name: value for name, value in slot.items() if name != "fd"}
                _send(channel, {"kind": "slot", "slot": told}, slot["fd"])
        for caller in estate["callers"]:
            told = {name: value for name, value in caller.items() if name != "fd"}
            _send(channel, {"kind": "caller", "caller": told}, caller["fd"])
        _send(channel, {"kind": "end"})
        _await(channel, READY)
        _check_there(channel)
    except Exception as error:  # noqa: BLE001  whatever it is, programs need a server
        server.start()
        raise DaemonError(str(error)) from None


def leave(channel: socket.socket, server: Server) -> None:
    """Lets programs go to the successor, which runs; returns when it answers in the API's place. Blocks."""
    server.leave()
    with contextlib.suppress(OSError, DaemonError):  # it is alone now, whatever becomes of it
        channel.send(LEFT)
        _await(channel, DONE)


def _send(channel: socket.socket, item: dict[str, Any], *descriptors: int) -> None:
    socket.send_fds(channel, [msgspec.json.encode(item)], list(descriptors))


def _check_there(channel: socket.socket) -> None:
    """That the successor, which was ready, has not given up since: this process may have been stopped meanwhile."""
    if await_readable([channel], 0.0):
        raise DaemonError("the other daemon ended")


def _await(channel: socket.socket, word: bytes) -> None:
    said = channel.recv(16)
    if said != word:
        raise DaemonError(f"the other daemon said {said!r}: expected {word!r}" if said else "the other daemon ended")


def reach(path: str, pid: int) -> socket.socket:
    """A channel to the successor that asked, the process ``pid``. Raises OSError and `DaemonError`."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connect_in_turn(channel, path, SECONDS)
        if peer_of(channel).pid != pid:
            raise _failed("another process listens where the successor should")
    except BaseException:
        channel.close()
        raise
    return channel


# --- the successor ---------------------------------------------------------------------------------------------------


class Process:
    """By pidfd, if it is there."""

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = -1

    def ended(self, *, within: float) -> bool:
        """Waits so many seconds for it."""
        return self._descriptor < 0 or bool(await_readable([self._descriptor], within))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


@dataclass
class Predecessor:
    """The daemon before, which waits for `commit`. Leaving it without that lets the daemon before go on."""

    channel: socket.socket
    lock: int = -1
    groups: list[dict[str, Any]] = field(default_factory=list)
    listeners: dict[str, int] = field(default_factory=dict)
    ledgers: list[dict[str, Any]] = field(default_factory=list)
    callers: list[dict[str, Any]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def __enter__(self) -> Predecessor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def bequeath(self, server: Server) -> None:
        """Ledgers and programs that are on their way in, to a server that knows devices and groups."""
        for ledger in self.ledgers:
            server.inherit_ledger(ledger)
        for caller in self.callers:
            server.inherit_caller(caller)

    def commit(self) -> None:
        """This daemon runs: its programs come. Blocks. Raises `DaemonError`: the one before goes on."""
        with contextlib.closing(Process(peer_of(self.channel).pid)) as elder:
            try:
                self.channel.send(READY)
                _await(self.channel, LEFT)
            except (OSError, DaemonError) as error:
                if not elder.ended(within=ENDS_WITHIN):
                    raise _failed(str(error)) from None

    def dismiss(self) -> None:
        """This daemon answers: the one before ends, and has ended when this returns. Blocks."""
        with contextlib.suppress(OSError), contextlib.closing(Process(peer_of(self.channel).pid)) as elder:
            self.channel.send(DONE)
            elder.ended(within=SECONDS)


def take_over(endpoint: Endpoint) -> Predecessor | None:
    """What the daemon of ``endpoint`` hands over; None if none runs there, or if it ended before all was here: what it
    wrote down is there for the next, as after any end. Blocks. Raises `DaemonError`: it goes on.
    """
    try:
        connection = Connection(endpoint, timeout=SECONDS)
    except DaemonUnreachable:
        return None
    with connection:
        peer = peer_of(connection.stream)
        if peer.pid <= 0:
            raise _failed("the daemon is of another pid namespace")
        with contextlib.closing(Process(peer.pid)) as elder:
            try:
                return _asked(endpoint, connection, peer)
            except (OSError, DaemonError) as error:
                if not elder.ended(within=ENDS_WITHIN):
                    raise
                logger.warning("the daemon before, pid=%d, ended while it handed over: %s", peer.pid, error)
                return None


def _asked(endpoint: Endpoint, connection: Connection, elder: Peer) -> Predecessor:
    path = endpoint.directory / f"successor-{os.getpid()}.sock"
    with _listening(path) as listener:
        connection.send("take_over", socket=str(path))
        predecessor = Predecessor(_accept(listener, connection, elder))
        try:
            _receive_all(predecessor)
        except OSError as error:
            predecessor.close()
            raise _failed(str(error)) from None
        except BaseException:
            predecessor.close()
            raise
        return predecessor


def _accept(listener: socket.socket, connection: Connection, elder: Peer) -> socket.socket:
    """The channel of the daemon that was asked by ``connection``; others that come are sent away."""
    if elder.uid not in (0, os.getuid()):
        raise _failed("another user's process answered")
    give_up = time.monotonic() + SECONDS
    ends = (listener, connection)
    while True:
        ready = await_readable(ends, give_up - time.monotonic())
        if listener.fileno() not in ready:
            if connection.fileno() in ready:
                _refused(connection)
            raise _failed("the daemon does not answer")
        channel, _ = listener.accept()
        if peer_of(channel) == elder:
            channel.settimeout(SECONDS)
            return channel
        channel.close()


def _refused(connection: Connection) -> None:
    try:
        connection.reply()
    except DaemonError as error:
        if not str(error).startswith("bad request"):
            raise
        stop = command("stop", simulated=connection.endpoint.kind == "simulated")
        raise DaemonError(
            "the daemon that runs is of a version that cannot hand over",
            hint=f"end it with `{stop}`, then start this one: its programs join by themselves",
        ) from None


@contextlib.contextmanager
def _listening(path: Path) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        try:
            path.chmod(0o600)
            listener.listen(BACKLOG)
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _receive_all(p: Predecessor) -> None:
    while True:
        data, descriptors, _, _ = socket.recv_fds(p.channel, MAX_PACKET, 4)
        p.descriptors += descriptors
        fd = descriptors[0] if descriptors else -1
        item: dict[str, Any] = from_json(data, dict[str, Any]) if data else {"kind": "nothing: it ended"}
        match item["kind"]:
            case "lock" if item["form"] == FORM:
                p.lock = fd
            case "group":
                p.groups.append(item["group"])
            case "listener":
                p.listeners[item["path"]] = fd
            case "ledger":
                p.ledgers.append(item | {"device": bytes.fromhex(item["device"]), "fd": fd, "slots": []})
            case "slot":
                p.ledgers[-1]["slots"].append(item["slot"] | {"fd": fd})
            case "caller":
                p.callers.append(item["caller"] | {"fd": fd})
            case "end" if p.lock >= 0:
                return
            case kind:
                raise _failed(f"the daemon before sent {kind!r}, which this one does not know")
