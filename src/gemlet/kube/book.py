"""The shares of this node: opened, changed, closed, and brought back after anything restarted.

A share is four things that must come and go together: a line in the checkpoint, a directory, a group with a socket in
the daemon, and for a claim a CDI file. A share is announced only when it has all of them, and the checkpoint is removed
last, so that after a crash the agent sees what is missing or left over.

One that cannot be brought back keeps no other back: no container starts in it, and it is tried again, later each time.

Where the checkpoint was damaged, what it does not name may be in use: it is unaccounted for, and nothing of it is
removed before its claim is prepared or unprepared again, or the kubelet knows of no container that could have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gemlet.errors import DaemonError, DaemonUnreachable, GemletError, Refused
from gemlet.kube import cdi, checkpoint, names, strangers
from gemlet.kube.daemon_link import terms
from gemlet.kube.edits import Edits, Host, share_directory, share_edits
from gemlet.kube.quantity import format_bytes
from gemlet.kube.queues import Queues
from gemlet.kube.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gemlet.kube.daemon_link import Terms
    from gemlet.kube.inventory import Gpu
    from gemlet.kube.request import Amounts
    from gemlet.kube.share import Share

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0  # for the processes of a pod that has just ended to be gone from the daemon's books
CLOSE_STEP_SECONDS = 0.05


class NoRoom(GemletError):
    """The GPUs have less left than a share is to have: others have it, or one has not been closed yet."""


class Daemon(Protocol):
    """What the book asks of `DaemonLink`."""

    async def open(self, share: Share, socket: str, *, device: int | None) -> None: ...
    async def remove(self, group: str) -> None: ...
    async def shares(self) -> Mapping[str, Terms]: ...


class ShareBook:
    """All shares of one node. ``cdi_directory``: where the container runtime looks; ``file``: the checkpoint."""

    def __init__(
        self,
        host: Host,
        *,
        daemon: Daemon,
        file: Path,
        cdi_directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self.gpus: dict[str, Gpu] = {}
        self._daemon = daemon
        self._file = file
        self._cdi = cdi_directory
        loaded = checkpoint.load(file)
        self.shares: dict[str, Share] = {share.id: share for share in loaded.shares}
        self.unaccounted = set(loaded.unaccounted) - set(self.shares)
        if loaded.damage is not None:
            self._keep_all(loaded.damage)
        self._clock = clock
        self._retries = Retries()  # of shares that could not be restored, and of what is nobody's and stays
        self._before: dict[str, Amounts] = {}  # granted to those that are being changed
        self._unsure: set[str] = set()  # of which the daemon may have what was not to be: a change that failed
        self._queues = Queues()  # with each share
        self._saving = asyncio.Lock()
        self._changes = self._saved = 0  # of the shares, and how many of them the checkpoint has

    def edits(self, share: Share) -> Edits:
        """What its containers get."""
        amounts = share.amounts
        return share_edits(share.gpus, amounts.memory, amounts.compute, amounts.limit, share.id, host=self.host)

    def socket(self, share_id: str) -> str:
        """Its socket, on the host."""
        return f"{share_directory(self.host.shares, share_id)}/{names.SOCKET_NAME}"

    def taken(self, uuid: str) -> float:
        """How much of a GPU is given out, 0 to 1: of its time or of its memory, whichever is more."""
        gpu = self.gpus.get(uuid)
        granted = [share.granted for share in self.shares.values() if uuid in share.gpus]
        if gpu is None or not granted:
            return 0.0
        return max(sum(each.compute for each in granted) / 100, sum(each.memory for each in granted) / gpu.memory)

    def openings(self) -> dict[str, float]:
        """Of the shares that there are, by id: what tells one from the next with its id."""
        return {share.id: share.opened for share in self.shares.values()}

    async def open(self, share: Share, *, before: Mapping[str, float] | None = None) -> Share:
        """Opens a share; one that is open already stays as it is, if its claim is allocated as it was. Returns what is
        open.

        ``before``: the `openings` before its claim was read. What was opened since is not closed for it.

        Raises `NoRoom`, `DaemonError` and OSError, and then nothing of the share is left, unless it may be in use; and
        `GemletError`.
        """
        async with self._queues.of(share.id):
            known = self.shares.get(share.id)
            if known is not None and known.claim_uid:
                if known.is_of(share.granted, share.requests):
                    await self._apply(known)  # the files may be gone, or the daemon another one
                    return known
                _check_older(known, before)
                await self._close(known.id)  # its claim has been allocated anew
            for other in self._in_the_way_of(share):
                _check_older(other, before)
                await self._close(other.id)
            self._check_room(share)
            in_use = share.id in self.unaccounted
            self.shares[share.id] = share
            try:
                # Side by side, for the kubelet waits: whichever of the two a crash leaves alone, `restore` finds.
                await _all(self._save(), self._apply(share))
                self._check_open(share)
            except BaseException as error:
                if in_use:
                    self.unaccounted.add(share.id)
                    self.shares.pop(share.id, None)
                    raise
                with contextlib.suppress(OSError):
                    await self._undo(share, ask=not isinstance(error, DaemonUnreachable))
                raise
            return share

    async def change(self, share: Share, *, before: Share | None = None) -> None:
        """Puts ``share`` in the place of the one with its id: other amounts, another group, a pod.

        ``before``: of which it was made, if it must be that one still. Raises as `open`, and KeyError if that one is
        there no more."""
        async with self._queues.of(share.id):
            known = self.shares[share.id]
            if known.opened != share.opened or before not in (None, known):
                raise KeyError(share.id)  # closed, and opened again with what its claim has now
            if known == share and share.id not in self.not_restored():
                await self.catch_up()
                return
            if known.granted != share.granted:
                self._check_room(share)
            # At once, so that what starts at the same time finds it taken, and `restore` knows the group.
            self.shares[share.id] = share
            self._before[share.id] = known.granted
            try:
                if known.group != share.group:
                    for other in self._in_the_way_of(share):
                        await self._close(other.id)
                    await self._daemon.remove(known.group)
                await self._apply(share)
                self._check_open(share)
            except BaseException:
                if self.shares.get(share.id) is share:  # else it was in the way of another, and is closed
                    self.shares[share.id] = known
                self._unsure.add(share.id)
                self._changes += 1  # another's save may have written what was not to be
                raise
            finally:
                del self._before[share.id]
            await self._save()

    async def close(self, share_id: str, *, opened: float | None = None) -> None:
        """Closes a share; nothing happens if there is none. Raises `Refused` while programs use it, and as `open`.

        ``opened``: of the one that is meant, where it may have been closed, and the next been opened, meanwhile.
        """
        async with self._queues.of(share_id):
            if opened is not None and self.openings().get(share_id, opened) != opened:
                return
            if share_id in self.unaccounted:
                await self._forget(share_id)
            await self._close(share_id)

    async def unknown_groups(self) -> set[str]:
        """The daemon's shares that are none of the book's. Raises `DaemonError`."""
        return set(await self._daemon.shares()) - {share.group for share in self.shares.values()}

    async def restore(self, *, at_once: bool = False) -> None:
        """Makes everything be as the book says, and removes what it knows nothing of. Raises `DaemonError` of a daemon
        that does not answer, and OSError.

        What fails for one share is its own trouble: it is one of `not_restored`, and left alone until its time has
        come. ``at_once``: it has come for all of them.
        """
        if at_once:
            self._retries.at_once()
        waiting = self._retries.waiting(self._clock())
        for share_id in [each for each in self.shares if each not in waiting]:
            async with self._queues.of(share_id):
                if (share := self.shares.get(share_id)) is not None:
                    await self._restore_one(share)
        self._unsure &= self.shares.keys()
        await self._remove_strangers()

    def not_restored(self) -> set[str]:
        """The shares that the last try could not bring back. No container starts in them before one can."""
        return self._retries.names() & self.shares.keys()

    def left_open(self) -> set[str]:
        """Those of them in which one could start all the same, because their CDI files cannot be removed."""
        return {share_id for share_id in self.not_restored() if cdi.is_there(self._cdi, share_id)}

    def keep_out(self) -> None:
        """Tries again to remove those files. Raises the first OSError, when all others have been tried."""
        failed: list[OSError] = []
        for share_id in sorted(self.left_open()):
            try:
                cdi.remove(self._cdi, share_id)
            except OSError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def devices_not_restored(self) -> set[str]:
        """The ids of what the device plugin gave out for those."""
        return {
            device
            for share_id in self.not_restored()
            for devices in self.shares[share_id].devices.values()
            for device in devices
        }

    async def catch_up(self) -> None:
        """Writes down what was done and has not been written, as when the disk was full: who tries again finds nothing
        else to do. Raises OSError."""
        # Who asked for it may be gone before the disk has answered, as a kubelet that restarts. Its thread goes on, and
        # must be alone with the file until it ends.
        await asyncio.shield(asyncio.ensure_future(self._write(self._changes)))

    def incomplete(self, groups: Mapping[str, Terms]) -> bool:
        """Whether `restore` has something to do, the daemon having ``groups``: also where one is promised something
        else, as after `gemlet set`, or by a daemon that found an older file of its own."""
        waiting = self._retries.waiting(self._clock())
        shares = [share for share in self.shares.values() if share.id not in waiting]
        with_file = {share.id for share in shares if share.claim is not None}
        wanted = {share.group: terms(share, self._device(share)) for share in shares}
        left_alone = {self.shares[share_id].group for share_id in waiting & self.shares.keys()}
        there = {group: promised for group, promised in groups.items() if group not in left_alone}
        return bool(
            not (wanted.items() <= there.items() if self.unaccounted else wanted == there)
            or self._retries.due(self._clock())
            or self._unsure - waiting
            or not strangers.names_there(self.host.shares, self._cdi) <= self.shares.keys() | self.unaccounted | waiting
            or not with_file <= cdi.share_ids(self._cdi)
            or not all(_is_socket(Path(self.socket(share.id))) for share in shares)
        )

    # --- inside --------------------------------------------------------------------------------------------------

    def _device(self, share: Share) -> int | None:
        single = self.gpus.get(share.gpus[0]) if len(share.gpus) == 1 else None
        return single.index if single else None

    async def _restore_one(self, share: Share) -> None:
        """Raises `DaemonError` only of a daemon that does not answer."""
        try:
            await self._bring_back(share)
        except Exception as error:
            if isinstance(error, DaemonError):
                await self._check_daemon(error)
            elif not isinstance(error, (GemletError, OSError)):  # of one share it must not end the agent at each start
                logger.exception("share=%s", share.id)
            if self._retries.failed(share.id, str(error), self._clock()):
                said = "share=%s not restored: %s; no container starts in it, and it is tried again"
                logger.error(said, share.id, error)
            with contextlib.suppress(OSError):  # then it is one of `left_open`
                cdi.remove(self._cdi, share.id)

    async def _bring_back(self, share: Share) -> None:
        try:
            await self._apply(share)
        except Refused:
            alike = any(other.group == share.group and other.id != share.id for other in self.shares.values())
            if alike or _is_socket(Path(self.socket(share.id))):
                raise
            # The daemon has the name at another socket, left over by a change that failed. Nobody else removes it.
            with contextlib.suppress(Refused):
                await self._daemon.remove(share.group)
            await self._apply(share)

    async def _apply(self, share: Share) -> None:
        Path(share_directory(self.host.shares, share.id)).mkdir(mode=0o755, parents=True, exist_ok=True)  # noqa: ASYNC240
        device = self._device(share)
        try:
            await self._daemon.open(share, self.socket(share.id), device=device)
        except Refused:
            if not self.unaccounted:
                raise
            # One that is not accounted for may have had this name before, and a name is of one object at a time.
            await self._daemon.remove(share.group)
            await self._daemon.open(share, self.socket(share.id), device=device)
        if share.claim is not None:
            check = self.host.start_check(share.id)
            Path(check[-1]).mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240  nothing waits without it
            cdi.write(self._cdi, share.id, cdi.specification(share.id, share.requests, self.edits(share), check))
        self.unaccounted.discard(share.id)
        self._unsure.discard(share.id)
        if self._retries.succeeded(share.id):
            logger.info("share=%s restored", share.id)

    def _keep_all(self, damage: str) -> None:
        # Raises OSError: were the next save the only checkpoint there is, nobody could tell what was lost.
        lost = strangers.names_there(self.host.shares, self._cdi) - set(self.shares)
        if lost or self._file.exists():
            checkpoint.set_aside(self._file, damage)
            self.unaccounted |= lost
            checkpoint.save(self._file, self.shares.values(), self.unaccounted)

    async def _forget(self, share_id: str) -> None:
        cdi.remove(self._cdi, share_id)
        shutil.rmtree(share_directory(self.host.shares, share_id), ignore_errors=True)
        self.unaccounted.discard(share_id)  # its group goes with those of all others that are forgotten
        await self._save()

    async def _close(self, share_id: str) -> None:
        share = self.shares.get(share_id)
        if share is None:
            await self.catch_up()
            return
        cdi.remove(self._cdi, share_id)  # first: nothing new may start in it
        await self._remove_group(share.group)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(share_directory(self.host.shares, share_id))
        # One that is in the way of another is closed for that one, maybe while its pod's end closes it, too.
        if self.shares.get(share_id) is share:
            del self.shares[share_id]
            self._retries.succeeded(share_id)
        await self._save()

    async def _undo(self, share: Share, *, ask: bool) -> None:
        # Whatever the daemon may have of it, `restore` finds: nobody can reach it without the directory. So a daemon
        # that does not answer is not waited for again.
        self.shares.pop(share.id, None)
        self._retries.succeeded(share.id)
        shutil.rmtree(share_directory(self.host.shares, share.id), ignore_errors=True)
        with contextlib.suppress(OSError):  # it is nobody's then, and `restore` tries again
            cdi.remove(self._cdi, share.id)
        if ask and not any(other.group == share.group for other in self.shares.values()):
            with contextlib.suppress(DaemonError):
                await self._daemon.remove(share.group)
        await self._save()

    async def _remove_group(self, group: str) -> None:
        give_up = asyncio.get_running_loop().time() + CLOSE_SECONDS
        while True:
            try:
                return await self._daemon.remove(group)
            except Refused:
                if asyncio.get_running_loop().time() >= give_up:
                    raise
            await asyncio.sleep(CLOSE_STEP_SECONDS)

    async def _remove_strangers(self) -> None:
        stay = strangers.remove(self.host.shares, self._cdi, self.shares.keys() | self.unaccounted)
        for name, reason in stay.items():
            if self._retries.failed(name, reason, self._clock()):
                logger.error("share=%s not removed: %s; it is nobody's, and removing it is tried again", name, reason)
        self._retries.keep(self.shares.keys() | stay.keys())
        # Of those that are unaccounted for, only the checkpoint knew the names of their groups.
        for group in await self.unknown_groups() if not self.unaccounted else ():
            try:
                await self._daemon.remove(group)
            except DaemonError as error:  # it goes when its programs have
                await self._check_daemon(error)

    async def _check_daemon(self, error: DaemonError) -> None:
        """Raises `DaemonError` unless ``error`` was about the one group only."""
        if not isinstance(error, Refused):
            await self._daemon.shares()

    def _check_open(self, share: Share) -> None:
        if self.shares.get(share.id) is not share:  # and `restore` removes what has been made of it again
            raise GemletError(
                f"the share {share.id} was closed meanwhile: the kubelet gave its devices to another container",
                hint="wait for the kubelet's next try, or delete the pod",
            )

    def _in_the_way_of(self, share: Share) -> list[Share]:
        # A device is given to one container at a time, and a name to one object: who had either before is gone.
        return [
            other
            for other in self.shares.values()
            if other.id != share.id and (other.group == share.group or _overlap(other.devices, share.devices))
        ]

    def _check_room(self, share: Share) -> None:
        for uuid in share.gpus:
            gpu = self.gpus.get(uuid)
            if gpu is None:
                raise NoRoom(
                    f"this node has no GPU {uuid}", hint="check `nvidia-smi -L`: the GPU may have been taken out"
                )
            others = [
                self._counted(other) for other in self.shares.values() if uuid in other.gpus and other.id != share.id
            ]
            compute, memory = sum(each[0] for each in others), sum(each[1] for each in others)
            if compute + share.granted.compute > 100:
                asked, taken = f"compute: {share.granted.compute}", f"{compute} of 100"
            elif memory + share.granted.memory > gpu.memory:
                asked = f"memory: {format_bytes(share.granted.memory)}"
                taken = f"{format_bytes(memory)} of {format_bytes(gpu.memory)}"
            else:
                continue
            raise NoRoom(
                f"{asked} does not fit on {uuid}, of which {taken} is taken",
                hint="wait: the kubelet tries again until shares there have ended",
            )

    def _counted(self, share: Share) -> tuple[int, int]:
        """Time and memory, and while it is being changed the more of both ways, since the change may fail."""
        now, before = share.granted, self._before.get(share.id, share.granted)
        return max(now.compute, before.compute), max(now.memory, before.memory)

    async def _save(self) -> None:
        self._changes += 1
        await self.catch_up()

    async def _write(self, own: int) -> None:
        async with self._saving:
            if self._saved >= own:
                return  # who waited before has written this change too: pods come in crowds, and a disk is slow
            changes = self._changes
            await asyncio.to_thread(checkpoint.save, self._file, list(self.shares.values()), set(self.unaccounted))
            self._saved = changes


def _check_older(share: Share, before: Mapping[str, float] | None) -> None:
    """Raises GemletError if ``share`` is not one of those that there were ``before``."""
    if before is not None and before.get(share.id) != share.opened:
        raise GemletError(
            f"the share {share.id} was opened meanwhile, by what the claim {share.group} has now",
            hint="wait for the kubelet's next try",
        )


async def _all(*steps: Awaitable[None]) -> None:
    """Raises the first error of all ``steps``, when every one of them has ended."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _overlap(first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]) -> bool:
    return any(set(ids) & set(second.get(resource, ())) for resource, ids in first.items())


def _is_socket(path: Path) -> bool:
    """Also False of one that cannot be looked at."""
    try:
        return path.is_socket()
    except OSError:
        return False
