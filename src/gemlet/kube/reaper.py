"""Closes shares whose containers are gone.

A device plugin is not told that a container has ended, so the kubelet is asked. One that started while it could not
reach the apiserver knows of no pods, whose containers run on, or are yet to start: the apiserver must not have the pod
here any more, too. Of whom it is that has not started, or of whom a damaged checkpoint says nothing, the kubelet's own
checkpoint tells.
The kubelet unprepares a claim, but the agent can miss that message while it is down, so the apiserver is asked for the
claim; and it says nothing of one that is allocated anew while it has it prepared.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from gemlet.errors import GemletError, Refused
from gemlet.kube import names
from gemlet.kube.api_server import ApiError, is_named
from gemlet.kube.claims import counted, pods_of
from gemlet.kube.dra import claim_path
from gemlet.kube.holders import ENDED
from gemlet.kube.kubelet_checkpoint import is_of
from gemlet.kube.quantity import format_bytes
from gemlet.kube.share import claim_uid_of

if TYPE_CHECKING:
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.book import ShareBook
    from gemlet.kube.device_plugin import Kubelet
    from gemlet.kube.pod_events import PodEvents
    from gemlet.kube.pod_resources import Assignments
    from gemlet.kube.share import Share

logger = logging.getLogger(__name__)

YOUNG_SECONDS = 30.0  # the kubelet shows a device with its pod a moment after it has asked for it
_COUNTED = (names.SLOT_RESOURCE, names.COMPUTE_RESOURCE)
MISSED = 2  # a share must be missing from this many answers in a row


class Reaper:
    """Of the shares of ``node``."""

    def __init__(
        self,
        book: ShareBook,
        kubelet: Kubelet,
        api: ApiServer,
        events: PodEvents,
        *,
        node: str,
        young: float = YOUNG_SECONDS,
    ) -> None:
        self._book = book
        self._kubelet = kubelet
        self._api = api
        self._events = events
        self._node = node
        self._young = young
        self._missed: dict[str, int] = {}

    async def look(self) -> list[str]:
        """Looks once; returns the ids of the shares that were closed. Raises `KubeletUnreachable`."""
        closed = []
        assignments = None
        for share in list(self._book.shares.values()):
            if share.claim is None:
                if 0 <= time.time() - share.opened < self._young:  # a clock set back makes nothing young for hours
                    continue
                assignments = assignments or await self._kubelet.assignments()
                held = _held(share, assignments)
            else:
                try:
                    held = await self._wanted(share)
                except Exception:  # anybody may have written the claim, and the agent would end after each start
                    logger.exception("share=%s", share.id)
                    continue
            if held:
                self._missed.pop(share.id, None)
                continue
            self._missed[share.id] = self._missed.get(share.id, 0) + 1
            if self._missed[share.id] < MISSED or await self._has_pod(share, assignments):
                continue
            if await self._close(share):
                closed.append(share.id)
        if self._uncounted():
            closed += await self._close_uncounted(assignments or await self._kubelet.assignments())
        known = {*self._book.shares, *self._book.unaccounted}
        self._missed = {name: count for name, count in self._missed.items() if name in known}
        return closed

    def _uncounted(self) -> list[str]:
        # Those of claims are prepared again, or unprepared, by their id.
        return [name for name in self._book.unaccounted if claim_uid_of(name) is None]

    async def _close_uncounted(self, assignments: Assignments) -> list[str]:
        """Closes what no checkpoint accounts for, once every container with a device is accounted for otherwise."""
        known = {each for share in self._book.shares.values() for each in _places(share)}
        # Units of memory are in no share: who has them has units of time.
        counted = {holder for holder in assignments.holders if holder[0] in _COUNTED} - known
        uids = {uid for place, uid in assignments.uids.items() if place[0] in _COUNTED and place not in known}
        held = bool(counted) or await self._is_here(uids)
        closed = []
        for share_id in self._uncounted():
            self._missed[share_id] = 0 if held else self._missed.get(share_id, 0) + 1
            if self._missed[share_id] >= MISSED:
                await self._book.close(share_id)
                logger.info("share=%s closed: no container has it", share_id)
                closed.append(share_id)
        return closed

    async def _wanted(self, share: Share) -> bool:
        assert share.claim is not None
        try:
            claim = await self._api.get(claim_path(*share.claim))
        except ApiError as error:
            return not error.gone
        allocated = bool((claim.get("status") or {}).get("allocation"))
        if claim["metadata"]["uid"] != share.claim_uid or not allocated:
            return False
        await self._hold(share, claim)
        return True

    async def _hold(self, share: Share, claim: dict[str, Any]) -> None:
        """Lets a share have no more than its claim, if that has been allocated anew."""
        changed = counted(share, claim, self._node)
        if changed == share:
            return
        try:
            await self._book.change(changed, before=share)
        except KeyError:
            return  # closed meanwhile, or changed: the next look finds it
        except (GemletError, OSError) as error:
            logger.warning("share=%s not held to its claim, which was allocated anew: %s", share.id, error)
            return
        has = f"{changed.granted.compute} % and {format_bytes(changed.granted.memory)} of {', '.join(share.gpus)}"
        name = claim["metadata"]["name"]
        text = f"gemlet: the claim {name} was allocated anew while it was in use, and has {has} now"
        logger.warning("share=%s %s", share.id, text)
        for pod in pods_of(claim):
            self._events.tell(pod, text, reason="ShareChanged")

    async def _has_pod(self, share: Share, assignments: Assignments | None) -> bool:
        if share.claim is not None or assignments is None:
            return False
        if not share.pod.name:  # of a container that has not started
            return await self._is_here({assignments.uids[each] for each in _places(share) if each in assignments.uids})
        try:
            pod = await self._api.get(share.pod.path)
        except ApiError as error:
            return not error.gone
        return share.pod.is_of(pod["metadata"]) and self._lives(pod)

    async def _is_here(self, uids: set[str]) -> bool:
        """Whether one of the pods that the kubelet calls ``uids`` is one of this node, for all that can be known."""
        if not uids:
            return False
        try:
            async for pod in self._api.listed("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}"):
                if is_named(pod) and any(is_of(uid, pod["metadata"]) for uid in uids) and self._lives(pod):
                    return True
                del pod  # it may be of megabytes, as the next
        except ApiError:
            return True
        return False

    def _lives(self, pod: dict[str, Any]) -> bool:
        # One that is being deleted may stay for its finalizers, long after its containers.
        ended = (pod.get("status") or {}).get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]
        return not ended and bool(pod["spec"].get("nodeName") == self._node)

    async def _close(self, share: Share) -> bool:
        try:
            await self._book.close(share.id, opened=share.opened)
        except Refused:
            return False  # its programs are still ending
        except (GemletError, OSError) as error:
            logger.warning("share=%s not closed: %s", share.id, error)
            return False
        if share.id in self._book.shares:
            return False  # it was opened again while its claim was asked for
        logger.info("share=%s group=%s closed: its container is gone", share.id, share.group)
        return True


def _held(share: Share, assignments: Assignments) -> bool:
    return any(each in assignments.holders for each in _places(share))


def _places(share: Share) -> list[tuple[str, str]]:
    """What the kubelet gave out for a share, as `Assignments` has it."""
    return [(resource, device) for resource, devices in share.devices.items() for device in devices]
