"""Processes and users as the kernel names them: pidfds, peers of a socket, uids."""

from __future__ import annotations

import errno
import os
import pwd
import select
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from gemlet.devices.mps import process
from gemlet.errors import Refused

FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel
_UCRED, _INT = struct.Struct("3i"), struct.Struct("i")
SO_PEERPIDFD = 77  # of Linux's asm-generic/socket.h
NOBODY = 65534  # of the kernel: a user without rights of his own


@dataclass(frozen=True, slots=True)
class Peer:
    """The process and user at the other end of a socket, from the kernel (SO_PEERCRED). ``contained``: it is in a pid
    namespace of its own, as programs of containers are, and acts for no administrator."""

    pid: int
    uid: int
    contained: bool = False


def peer_of(connection: socket.socket) -> Peer:
    """The peer of a connected Unix socket."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


def caller(connection: socket.socket, *, shared: bool) -> Peer:
    """The peer, as what it asks for is judged.

    Containers are started as root, whom the kernel takes for root of the machine: but for namespaces there is no
    difference, and what an administrator may do here runs programs outside of the container. So such a one is nobody in
    particular. In a container of its own user's a program is that user, and no administrator.
    """
    peer = peer_of(connection)
    if not administers(peer.uid) or _is_near(connection, peer.pid):
        return peer
    is_the_user = peer.uid == os.getuid() and not shared
    return Peer(peer.pid, peer.uid if is_the_user else NOBODY, contained=True)


def _is_near(connection: socket.socket, pid: int) -> bool:
    """Whether the peer is in this process's pid namespace. False where the kernel does not say: it has ended, or is
    outside of this namespace."""
    try:
        try:
            (descriptor,) = _INT.unpack(connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, _INT.size))
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:  # Linux 6.5 has it
                raise
            descriptor = os.pidfd_open(pid)
        try:
            theirs = _pids(Path(f"/proc/self/fdinfo/{descriptor}"))  # needs no right to look at the process
        finally:
            os.close(descriptor)
        return pid > 0 and theirs[:1] == [str(pid)] and len(theirs) == len(_pids(Path("/proc/self/status")))
    except OSError:
        return False


def _pids(file: Path) -> list[str]:
    """A process's number in the namespace of /proc and in each that is nested there."""
    lines = file.read_text().splitlines()
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


def administers(uid: int) -> bool:
    """Whether ``uid`` is root or the daemon's own user."""
    return uid in (0, os.getuid())


def check_administrator(peer: Peer, what: str) -> None:
    """Raises `Refused` unless ``peer`` is root or runs as the daemon does."""
    if peer.contained:
        raise Refused(
            f"nobody may {what} from within a container", hint="do it outside: only there root is root of this machine"
        )
    if not administers(peer.uid):
        raise Refused(f"only root or the daemon's own user may {what}", hint="ask an administrator of this machine")


class ProcessLauncher:
    """A process by pidfd, so that a reused pid is never taken for it. It stays alive through exec."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is no such process (or it is in a namespace this daemon cannot see)."""
        self._descriptor = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def alive(self) -> bool:
        """Whether it still runs."""
        return not self._poll.poll(0)

    def send(self, number: signal.Signals) -> None:
        """Signals it. Raises OSError if it has ended, or is another user's who may not be signalled."""
        signal.pidfd_send_signal(self._descriptor, number)


def start_of(pid: int) -> int:
    """When the process was started, in ticks since boot: with its pid it names it for ever. 0 if there is none, or
    nobody can tell now.
    """
    found = process(pid)
    return found.started if found is not None else 0


def sees_the_drivers_pids() -> bool:
    """Whether pids mean here what they mean to the driver: this is the machine's own pid namespace."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, whose end is told to it by SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def name_of(uid: int) -> str:
    """The user name of a uid, or its number as text (containers often have no entry). May block: the daemon has
    users.py.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
