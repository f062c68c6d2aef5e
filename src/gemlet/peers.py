"""Whose process is at the other end of a connection: the kernel knows, of TCP within this machine and Unix sockets."""

from __future__ import annotations

import functools
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING, Any

from gemlet.accounts import account_of

if TYPE_CHECKING:
    import asyncio

PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
# linux/inet_diag.h: a netlink header, inet_diag_req_v2 (of which inet_diag_sockid is the second half), inet_diag_msg.
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_COOKIE = b"\xff" * 8
_UID_AT = 4 + 4 + 32 + 16 + 8  # family..retransmissions, ports, addresses, interface with cookie, expires to wqueue
_OWNER = struct.Struct("=II")  # uid and inode
_CLOSED = 7  # a state of TCP: it was reset
_SYN_SENT = 2  # a state: it is not connected yet
SOCK_DIAG = getattr(socket, "NETLINK_SOCK_DIAG", 4)
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
ANSWER_BYTES = 4096
ANSWER_S = 1.0
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
Connection = Any  # a socket, or what the event loop gives for one
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
THIS_MACHINE = "this machine"  # the place of its own addresses; whose name is a client's that nobody knows


def of_unix(connection: Connection) -> int | None:
    """The uid that connected, of a Unix socket."""
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    except OSError:
        return None
    uid: int = PEER_CREDENTIALS.unpack(found)[1]
    return uid


def of_tcp(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid that owns the socket at ``peer`` which is connected to ``here``; None if it is not of this machine, or if
    its process has closed it: nobody owns it then, which the kernel calls uid 0.

    The connection must be open, so that its ports belong to nobody else.
    """
    try:
        addresses = [_plain(ipaddress.ip_address(address.partition("%")[0])) for address in (peer[0], here[0])]
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
            kernel.settimeout(ANSWER_S)
            kernel.send(_question(addresses, (peer[1], here[1])))
            return _uid(kernel.recv(ANSWER_BYTES), addresses, (peer[1], here[1]))
    except (OSError, ValueError, struct.error):
        return None


def name(connection: Connection | None) -> str:
    """Who is served and limited as one, by a connection: within this machine a user, elsewhere an address.

    A machine has any address of its IPv6 network of 64 bits at will, so that all of them are one.
    """
    if connection is None:
        return ""
    try:
        peer = connection.getpeername()
    except OSError:  # it has gone
        return ""
    place = _place(str(peer[0])) if isinstance(peer, tuple) else THIS_MACHINE
    if place != THIS_MACHINE:
        return place
    uid = of_socket(connection)
    return place if uid is None else f"uid {account_of(uid)}"


@functools.lru_cache(maxsize=1024)
def _place(text: str) -> str:
    """What an address is one of."""
    try:
        address = _plain(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return text
    if address.is_loopback:
        return THIS_MACHINE
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)) if address.version == 6 else address)


def of_transport(transport: asyncio.BaseTransport) -> int | None:
    """The uid at the other end of a connection of the event loop; None if it is not known, or the client has gone."""
    connection = transport.get_extra_info("socket")
    return None if connection is None else of_socket(connection)


def of_socket(connection: Connection) -> int | None:
    """As `of_transport`."""
    if connection.family == socket.AF_UNIX:
        return of_unix(connection)
    try:
        return of_tcp(connection.getpeername()[:2], connection.getsockname()[:2])
    except OSError:
        return None


def has_gone(transport: asyncio.BaseTransport) -> bool:
    """Whether a client of TCP that sends no more has answered what was written to it by a reset. The event loop does
    not look at such a connection."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == socket.AF_UNIX:
        return False  # there writing has failed already
    try:
        state: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return state[0] == _CLOSED


def _plain(address: Address) -> Address:
    """A socket of IPv6 that speaks IPv4 has addresses of IPv6, of the form ::ffff:127.0.0.1."""
    return getattr(address, "ipv4_mapped", None) or address


def _question(addresses: list[Address], ports: tuple[int, int]) -> bytes:
    family = FAMILIES[addresses[0].version]
    places = b"".join(address.packed.ljust(16, b"\0") for address in addresses)
    sockid = _PORTS.pack(*ports) + places + bytes(4) + _NO_COOKIE
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + sockid
    return _HEADER.pack(_HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + request


def _uid(answer: bytes, addresses: list[Address], ports: tuple[int, int]) -> int | None:
    """Of an answer about exactly that socket, not about one that listens, which the kernel gives for want of it. A
    socket that a process has open has an inode."""
    _, kind, *_ = _HEADER.unpack_from(answer)
    at = _HEADER.size + 4
    if kind != SOCK_DIAG_BY_FAMILY or _PORTS.unpack_from(answer, at) != ports:
        return None
    size = 4 if answer[_HEADER.size] == socket.AF_INET else 16
    found = [_plain(ipaddress.ip_address(answer[start : start + size])) for start in (at + 4, at + 20)]
    if found != addresses:
        return None
    uid: int
    uid, inode = _OWNER.unpack_from(answer, _HEADER.size + _UID_AT)
    return uid if inode and answer[_HEADER.size + 1] != _SYN_SENT else None
