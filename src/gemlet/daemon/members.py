"""Programs that use devices, and what they hold there, kept on disk for the daemon that is started after a kill.

The ledgers of their memory go with the daemon. Until such a program has come back, the next daemon counts for it in its
group what it held when the file was written, or what the driver says if that is more: otherwise one that is frozen
would let the others of its group have all of the limit. A successor that takes over has the ledgers themselves
(succession.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gemlet.daemon.aside import Aside
from gemlet.devices.mps import same_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gemlet.daemon.native import Server
    from gemlet.daemon.state_file import StateFile

logger = logging.getLogger(__name__)

PAUSE = 0.1  # seconds between two looks at what changed, however fast programs come and go, and ...
PAUSES = 4  # times what the look took, as there may be thousands of them
PATIENCE = 2.0  # seconds for a disk to take what is written

Pid = Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Slot(msgspec.Struct, kw_only=True):
    """One program on one device. The fields are those of `Server.members`."""

    pid: Pid
    uid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    started: int
    who: str
    administrator: bool
    contexts: Count
    used: Bytes
    untracked: Bytes
    fixed: Bytes
    movable: Bytes
    mapped: Bytes
    index: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1024  # in the ledger of then; 1024: it was not written


class Ledger(msgspec.Struct, kw_only=True):
    """The programs of one group on one device. ``device``: its UUID in hexadecimal."""

    device: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    index: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    context_estimate: Bytes
    group: str
    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0  # of the ledger, by which its members know it
    slots: list[Slot]


class Members:
    """``gone``: whether the file is another daemon's by now."""

    def __init__(self, file: StateFile, server: Server, *, gone: Callable[[], bool]) -> None:
        self._file = file
        self._server = server
        self._gone = gone
        self._aside = Aside("members")
        self._content = self._written = b""

    def expect(self) -> None:
        """Has the server await those of the daemon before that live. Before the server starts; blocks."""
        for ledger in self._file.load(list[Ledger]) or ():
            try:
                with contextlib.ExitStack() as opened:
                    living = list(_living(ledger.slots, opened))
                    slots = [slot | {"index": n, "before": slot["index"]} for n, slot in enumerate(living)]
                    ended = {slot.index for slot in ledger.slots} - {slot["before"] for slot in slots}
                    image = msgspec.structs.asdict(ledger) | {"device": bytes.fromhex(ledger.device), "slots": slots}
                    image["ended"] = sorted(ended)
                    if slots:
                        self._server.inherit_ledger(image | {"fd": -1})
            except (OSError, ValueError, OverflowError, RuntimeError) as error:  # nanobind's, for a number too large
                logger.warning("state file=%s group=%s cannot be used: %s", self._file.path, ledger.group, error)

    async def keep(self, changed: asyncio.Event) -> None:
        """Writes what changed, for ever: when ``changed`` is set, and each second."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await changed.wait()
            changed.clear()
            began = time.thread_time()
            await self.write()
            await asyncio.sleep(max(PAUSE, PAUSES * (time.thread_time() - began)))

    async def write(self) -> None:
        """Writes what they are now beside all else, if that has changed."""
        if self._gone():
            return
        ledgers = [
            {name: ledger[name] for name in Ledger.__struct_fields__}
            | {
                "device": ledger["device"].hex(),
                "slots": [{name: slot[name] for name in Slot.__struct_fields__} for slot in ledger["slots"]],
            }
            for ledger in self._server.members()
        ]
        self._content = msgspec.json.encode(ledgers)
        if self._content != self._written:
            self._aside.do(self._save)
            await self._aside.settle(PATIENCE)

    def _save(self) -> None:
        content = self._content
        if content == self._written or self._gone():
            return
        if self._file.write(content):
            self._written = content


def _living(slots: list[Slot], opened: contextlib.ExitStack) -> Iterator[dict[str, Any]]:
    """Those whose process lives, with a pidfd that ``opened`` closes. Raises OSError."""
    for slot in slots:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(slot.pid)
            opened.callback(os.close, descriptor)
            if same_process(slot.pid, slot.started):
                yield msgspec.structs.asdict(slot) | {"fd": descriptor}
