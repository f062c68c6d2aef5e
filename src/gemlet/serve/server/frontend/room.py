"""Room for messages that wait, shared by the peers that sent them.

Where it does not last, the newest message goes of the peer that has most: one that sends without end has what others
leave, and a peer alone has all.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GRPC_ADDRESS = re.compile(r"ipv[46]:(?:%5B|\[)?([0-9a-fA-F.:]+?)(?:%5D|\])?:\d+")


@dataclass(eq=False, slots=True)
class Guest:
    """A message. ``end`` is called when it has to go."""

    peer: str
    nbytes: int
    end: Callable[[], object]
    gone: bool = False


class Room:
    """``budget``: bytes of all messages."""

    def __init__(self, budget: int) -> None:
        self.total = 0
        self._budget = budget
        self._guests: dict[Guest, None] = {}  # in the order in which they came

    def enter(self, peer: str, nbytes: int, end: Callable[[], object]) -> Guest:
        """May end others, or this one."""
        guest = Guest(peer, nbytes, end)
        self._guests[guest] = None
        self.total += nbytes
        while self.total > self._budget:
            last = self._newest_of_largest()
            self.leave(last)
            last.gone = True
            last.end()
        return guest

    def leave(self, guest: Guest) -> None:
        if guest in self._guests:
            del self._guests[guest]
            self.total -= guest.nbytes

    def _newest_of_largest(self) -> Guest:
        held: dict[str, int] = {}
        newest: dict[str, Guest] = {}
        for guest in self._guests:
            held[guest.peer] = held.get(guest.peer, 0) + guest.nbytes
            newest[guest.peer] = guest
        return newest[max(held, key=lambda peer: held[peer])]


def peer_of(grpc_peer: str) -> str:
    """Whom gRPC's name of a connection stands for: its address; of this machine, where all have one, the connection."""
    match = GRPC_ADDRESS.fullmatch(grpc_peer)
    return grpc_peer if match is None or ipaddress.ip_address(match[1]).is_loopback else match[1]
