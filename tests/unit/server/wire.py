"""native/wire.h for tests: what a client says, from Python. test_wire.py compares the offsets with the compiler's."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet.membership import WIRE_OLDEST, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC, VERSION, OLDEST = 0x314D4547, WIRE_VERSION, WIRE_OLDEST
HELLO, WELCOME, ATTACH, ATTACHED, REQUEST, TOOK, STOPPED, DRAINED, CONTEXT, REFUSED, LEAVES, BEFORE = range(1, 13)
ADMIT, ROOM, MOVED = range(16, 19)
OK, MISMATCH, DENIED, UNKNOWN, FULL, MALFORMED = range(6)
BLOCKED, RUN, PARKED, REVOKED, STOPPING = range(5)
DEADLINE, IDLE, BY_REVOCATION, EXIT = range(4)
CREATE_GROUP, STRICT, AGAIN, STILL_REQUESTS, UNDER_MPS = 1, 2, 4, 1, 1
SHARED, RAISE = 1, 2  # flags of a ClientPage
MOVABLE, TELL_BEFORE, ADOPT = 1, 2, 1
GRANTED, CAPACITY, RESIDENT, HOST = range(4)
NEVER = NO_LIMIT = 2**64 - 1

# magic version type device epoch | status reason client slot pid flags | time tail value | uuid group text
MESSAGE = struct.Struct("=IHHII IIIIiI QQQ 16s 256s 512s")
OFFSETS = {
    "Message.status": 16, "Message.time_ns": 40, "Message.uuid": 64, "Message.group": 80, "Message.text": 336,
    "ClientPage.token": 0, "ClientPage.flags": 4, "ClientPage.deadline_ns": 8, "ClientPage.window_ns": 16,
    "ClientPage.lead_ns": 24, "ClientPage.attached": 32, "ClientPage.contexts": 36, "ClientPage.launches": 64,
    "ClientPage.work_ns": 72, "ClientPage.idle_ns": 40, "ClientPage.idle_most_ns": 44, "ClientPage.poll_ns": 48,
    "ClientPage.agreed": 52, "ClientPage.heard_ns": 56, "ClientPage.samples": 80, "ClientPage.busy_samples": 88,
    "ClientPage.awaited_samples": 96, "ClientPage.room": 104, "ClientPage.tied": 112,
    "ClientPage.submissions": 116, "DevicePage.urgent": 0,
    "GroupLimits.memory_limit": 0, "GroupLimits.untracked": 8, "GroupLimits.context_estimate": 16,
    "GroupLimits.slot_count": 24, "GroupLimits.limited": 28, "GroupLimits.added_ns": 32, "GroupLimits.held": 40,
    "GroupLedger.lock": 0, "GroupLedger.turn": 4, "GroupLedger.number": 8, "GroupLedger.closed": 12,
    "GroupLedger.slots": 64,
    "ResidencyPage.allowed": 0, "ResidencyPage.ceiling": 8, "ResidencyPage.order": 16, "ResidencyPage.answered": 20,
    "ResidencyPage.admission": 24, "ResidencyPage.movable": 64, "ResidencyPage.mapped": 72,
    "ResidencyPage.moved_out": 80, "ResidencyPage.moved_in": 88, "ResidencyPage.seen": 96, "ResidencyPage.away": 100,
    "ResidencyPage.dropped": 104,
}  # fmt: skip


def pack(kind: int, **fields: Any) -> bytes:
    f = {
        "magic": MAGIC, "version": VERSION, "device": 0, "epoch": 0, "status": 0, "reason": 0, "client": 0, "slot": 0,
        "pid": os.getpid(), "flags": 0, "time_ns": time.monotonic_ns(), "tail_ns": 0, "value": 0, "uuid": b"",
        "group": b"", "text": b"",
    } | fields  # fmt: skip
    return MESSAGE.pack(
        f["magic"], f["version"], kind, f["device"], f["epoch"], f["status"], f["reason"], f["client"], f["slot"],
        f["pid"], f["flags"], f["time_ns"], f["tail_ns"], f["value"], f["uuid"], f["group"], f["text"],
    )  # fmt: skip


@dataclass
class Answer:
    version: int
    kind: int
    device: int
    status: int
    slot: int
    text: str
    descriptors: list[int]
    flags: int


class Page:
    """One of the shared structures, by field name."""

    def __init__(self, structure: str, descriptor: int, size: int, *, writable: bool = True) -> None:
        self.structure = structure
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
        os.close(descriptor)

    def get(self, name: str, *, index: int = 0, size: int = 8) -> int:
        at = OFFSETS[f"{self.structure}.{name}"] + 8 * index
        return int.from_bytes(self.memory[at : at + size], "little")

    def put(self, name: str, value: int, *, index: int = 0, size: int = 8) -> None:
        at = OFFSETS[f"{self.structure}.{name}"] + 8 * index
        self.memory[at : at + size] = value.to_bytes(size, "little")


def eventually(holds: Callable[[], object], what: Callable[[], str] = lambda: "it did not happen") -> None:
    """Returns as soon as ``holds`` is true; the limit only ends a test that hangs."""
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what())
        time.sleep(0.0002)


opened: list[RawClient] = []

# The peer of a connection is the process that made it, for as long as it lives.
CONNECTS = """
import socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
with socket.socket(fileno=int(sys.argv[2])) as parent:
    socket.send_fds(parent, [b"it"], [connection.fileno()])
connection.close()
sys.stdin.read()
"""


class RawClient:
    """A client by hand, polite unless told otherwise. Who starts a server for a test ends it: `end_all`."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        path: str,
        group: str = "g",
        *,
        flags: int = CREATE_GROUP,
        join: bool = True,
        version: int = VERSION,
        own_process: bool = False,
    ) -> None:
        """``own_process``: it is another process than all others, and ``end`` is that one's end."""
        if own_process:
            self.socket = self._connected_by_another(path)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.append(self)  # no earlier: there may be no descriptor left
        if not own_process:
            self.socket.connect(path)
        self.socket.settimeout(60)
        self.device = 0
        self.version = version
        if join:
            answer = self.ask(HELLO, group=group.encode(), flags=flags)
            assert answer.status == OK, answer

    def send(self, kind: int, **fields: Any) -> None:
        self.socket.send(pack(kind, **{"device": self.device, "version": self.version} | fields))

    def receive(self) -> Answer:
        data, ancillary, _, _ = self.socket.recvmsg(MESSAGE.size, socket.CMSG_SPACE(24))
        if not data:
            raise ConnectionError("dropped")
        fields = MESSAGE.unpack(data)
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        return Answer(
            fields[1],
            fields[2],
            fields[3],
            fields[5],
            fields[8],
            fields[16].split(b"\0")[0].decode(),
            list(descriptors),
            fields[10],
        )

    def ask(self, kind: int, **fields: Any) -> Answer:
        self.send(kind, **fields)
        return self.receive()

    def attach(self, uuid: bytes = bytes(16), *, flags: int = 0, before: RawClient | None = None) -> RawClient:
        """``before``: it had this slot under another daemon. `is_to_tell`: it is asked what the ledger has."""
        had = {"epoch": before.number, "client": before.slot + 1, "tail_ns": before.held} if before else {}
        answer = self.ask(ATTACH, uuid=uuid, flags=flags, **had)
        assert answer.status == OK, answer
        self.device, self.slot = answer.device, answer.slot
        self.is_to_tell = bool(answer.flags & TELL_BEFORE)
        page, limits, ledger, device, *movable = answer.descriptors
        self.page = Page("ClientPage", page, 128)
        self.limits = Page("GroupLimits", limits, 64, writable=False)
        self.ledger = Page("GroupLedger", ledger, 64 + 8 * 1024)
        self.shared = Page("DevicePage", device, 64, writable=fcntl.fcntl(device, fcntl.F_GETFL) & os.O_RDWR != 0)
        if movable:
            self.residency = Page("ResidencyPage", movable[0], 128)
        return self

    @property
    def number(self) -> int:
        return self.ledger.get("number", size=4)

    @property
    def held(self) -> int:
        return self.ledger.get("slots", index=self.slot)

    def tell(self, ledger: int, slots: dict[int, int], *, all_of_it: bool = True) -> None:
        """What is in one of before."""
        for slot, value in slots.items():
            self.send(BEFORE, epoch=ledger, slot=slot, value=value)
        if all_of_it:
            self.send(BEFORE, epoch=ledger, slot=1024)

    @property
    def state(self) -> int:
        return self.page.get("token", size=4) & 7

    @property
    def epoch(self) -> int:
        return self.page.get("token", size=4) >> 3

    def await_state(self, state: int) -> None:
        eventually(lambda: self.state == state, lambda: f"state {self.state}, not {state}")

    def stop(self, reason: int = DEADLINE, tail_ns: int = 0, *, wants: bool = False) -> None:
        epoch = self.epoch
        self.page.put("token", epoch << 3 | STOPPING, size=4)
        self.send(STOPPED, epoch=epoch, reason=reason, tail_ns=tail_ns, flags=STILL_REQUESTS if wants else 0)
        if tail_ns == 0:
            self.send(DRAINED, epoch=epoch)

    def _connected_by_another(self, path: str) -> socket.socket:
        here, there = socket.socketpair()
        with here, there:
            arguments = [sys.executable, "-S", "-c", CONNECTS, path, str(there.fileno())]
            self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, pass_fds=[there.fileno()])
            _, (descriptor,), *_ = socket.recv_fds(here, 2, 1)
        return socket.socket(fileno=descriptor)

    def close(self) -> None:
        self.socket.close()

    def end(self) -> None:
        """Its process ends, and with that the connection."""
        self.close()
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def end_all() -> None:
    for client in opened:
        client.end()
    opened.clear()
