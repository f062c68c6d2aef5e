"""A daemon that hands over to a successor (succession.py), and how it starts one itself."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from gemlet.daemon import notify, protocol, succession
from gemlet.errors import DaemonError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gemlet.daemon.lock import DirectoryLock
    from gemlet.daemon.native import Server
    from gemlet.daemon.saved_groups import Saved

logger = logging.getLogger(__name__)


class Elder:
    """``groups``: what a successor must know of them. ``leaving``: the programs are about to be the successor's.
    ``stop``: ends this daemon.
    """

    def __init__(
        self,
        server: Server,
        *,
        groups: Callable[[], list[Saved]],
        leaving: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._server = server
        self._groups = groups
        self._about_to_leave = leaving
        self._stop = stop
        self.lock: DirectoryLock | None = None  # once this daemon has it
        self._leaving = False  # a successor takes over, and has perhaps
        self._decided = asyncio.Event()  # whether it has
        self.left = False  # what is in the file system is the successor's

    async def check_stays(self) -> None:
        """Returns when no successor is taking over: what changed meanwhile it would not know. Raises `DaemonError`.

        It is true until the caller waits for something.
        """
        while self._leaving:
            await self._decided.wait()
            if self.left:
                raise DaemonError(protocol.REPLACED, hint="try again: it has the same address")

    async def hand_over(self, path: str, *, pid: int) -> None:
        """To the process ``pid``, which listens at ``path``; ends this daemon. Raises `DaemonError`: it goes on."""
        assert self.lock is not None
        if self._leaving:
            raise DaemonError("another daemon is taking this one's place already")
        self._leaving = True
        self._decided.clear()
        channel: socket.socket | None = None
        try:
            groups = msgspec.to_builtins(self._groups())
            channel = await asyncio.to_thread(succession.reach, path, pid)
            began = time.monotonic()
            await asyncio.to_thread(succession.give, channel, self._server, groups=groups, lock=self.lock.descriptor)
        except Exception as error:  # noqa: BLE001  whatever it is, this daemon goes on
            self._leaving = False
            self._decided.set()
            if channel is not None:
                channel.close()
            logger.error("pid=%d could not take over: %s", pid, error)
            raise DaemonError(f"the daemon cannot be handed over: {error}") from None
        seconds = time.monotonic() - began  # in which nobody governed
        self.lock.yields = self.left = True
        self._about_to_leave()
        try:
            await asyncio.to_thread(succession.leave, channel, self._server)
        except RuntimeError:  # the system allows no more threads
            succession.leave(channel, self._server)
        self._decided.set()
        channel.close()
        notify.systemd(f"MAINPID={pid}")
        logger.info("handed over to pid=%d in %.3f s", pid, seconds)
        self._stop()

    def start_successor(self) -> None:
        """Starts this daemon anew, as it was started, from the files as they are now; the new one takes over."""
        arguments = command(sys.orig_argv)
        logger.info("starting a successor: %s", " ".join(arguments))
        try:
            pid = os.posix_spawn(sys.executable, arguments, os.environ)
            ended = os.pidfd_open(pid)
        except OSError as error:
            logger.error("no successor can be started: %s", error)
            return

        def reap() -> None:
            asyncio.get_running_loop().remove_reader(ended)
            os.close(ended)
            _, code = os.waitpid(pid, 0)
            logger.error("the successor pid=%d ended with %d", pid, os.waitstatus_to_exitcode(code))

        asyncio.get_running_loop().add_reader(ended, reap)


def command(argv: list[str]) -> list[str]:
    """How to start a successor of a daemon that was started with ``argv``."""
    kept = [*argv]
    if "--ready-fd" in kept:  # who waited for it has long gone on
        at = kept.index("--ready-fd")
        del kept[at : at + 2]
    return kept if "--take-over" in kept else [*kept, "--take-over"]
