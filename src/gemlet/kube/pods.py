"""Follows the pods of this node: an annotation that is changed changes the share of a running pod.

GaiaGPU's dynamic allocation. An annotation that makes no sense changes nothing, and the pod gets an event that says
why.

Each pod that uses a claim is checked here: in shares that it would leave, its containers do not start (permits.py). A
pod may be here before its claim is a share, or is one again: it is checked again then.

An annotation by which the runtime chooses devices counts until the pod is gone (device_choices.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.errors import GemletError
from gemlet.kube import claims
from gemlet.kube.api_server import ApiError, is_named
from gemlet.kube.ask import for_container
from gemlet.kube.escape import choosing_annotation, refuse_annotation
from gemlet.kube.holders import ENDED
from gemlet.kube.pod_events import MAX_TEXT, error_message
from gemlet.kube.request import BadRequest, in_force
from gemlet.kube.share import Pod

if TYPE_CHECKING:
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.book import ShareBook
    from gemlet.kube.device_choices import DeviceChoices
    from gemlet.kube.permits import Permits
    from gemlet.kube.pod_events import PodEvents
    from gemlet.kube.share import Share

logger = logging.getLogger(__name__)

_Step = Callable[[dict[str, Any]], Awaitable[None]]
_KEPT = ("namespace", "name", "uid", "annotations")  # of a pod's metadata, until it is its turn

RETRY_SECONDS = 2.0
_ANY = ""  # in the place of the claims of a pod in which they cannot be read


class PodFollower:
    """Applies the annotations of the pods on ``node`` to their shares, and says in which they may start."""

    def __init__(
        self,
        api: ApiServer,
        book: ShareBook,
        node: str,
        *,
        events: PodEvents,
        choices: DeviceChoices,
        permits: Permits,
    ) -> None:
        self.permits = permits
        self._api = api
        self._book = book
        self._node = node
        self._users: dict[str, tuple[Pod, set[str]]] = {}  # by uid, those with claims, and these by name
        self._choices = choices
        self._to_do: dict[str, tuple[_Step, dict[str, Any]]] = {}  # by uid of the pod
        self._woken = asyncio.Event()
        self._events = events
        self._complained: dict[str, str] = {}  # by share, the last text; of those that there are

    async def seen(self, pod: Pod) -> dict[str, Any]:
        """A pod of this node as it is now, which is to start. Raises GemletError, also where another has taken its name
        meanwhile: the kubelet says of whom a container is by the name only."""
        found: dict[str, Any] = await self._api.get(pod.path, in_line=True)
        node = found["spec"].get("nodeName")
        if node != self._node:
            raise GemletError(
                f"the pod {pod.namespace}/{pod.name} is one of {node or 'no node'} now, and not of {self._node}",
                hint="wait for the kubelet to end the one before, or give the agent its node's name in --node",
            )
        if (name := self._choices.of(found["metadata"]["uid"])) is not None:
            refuse_annotation(name)
        return found

    def claims(self) -> set[tuple[str, str]]:
        """Namespace and name of each claim that a pod here uses."""
        return {(pod.namespace, claim) for pod, used in self._users.values() for claim in used if claim != _ANY}

    async def look_again(self, share: Share, reserved: Iterable[Pod] = ()) -> None:
        """Checks the pods that use the claim of a share and have not been checked since it is one: those that are here
        already, and those for which the claim is ``reserved``, of which the watch may tell late. Raises ApiError.

        Those that come after this are checked as they come; until then their containers wait.
        """
        assert share.claim is not None
        namespace, claim = share.claim
        pods = {pod.uid: pod for pod in reserved}
        pods |= {
            uid: pod for uid, (pod, used) in self._users.items() if pod.namespace == namespace and used & {claim, _ANY}
        }
        for uid, pod in pods.items():
            if not self.permits.said(share.id, uid):
                # Apart: of one, which may be of megabytes, nothing stays for the next.
                await self._look_at(share, uid, pod)

    async def _look_at(self, share: Share, uid: str, pod: Pod) -> None:
        known = uid in self._users
        try:
            seen = await self._api.get(pod.path, in_line=True)
        except ApiError as error:
            if not error.gone:
                raise
            seen = None
        if seen is None or seen["metadata"]["uid"] != uid or (known and uid not in self._users):
            self._forget(uid, share.id)  # it has gone, and comes no more
        elif known or seen["spec"].get("nodeName") == self._node:
            await self._check(seen)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._act())
            while True:
                try:
                    await self._follow()
                except ApiError as error:
                    logger.warning("pods: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        selector = f"spec.nodeName={self._node}"
        pods = self._api.listed("/api/v1/pods", fieldSelector=selector)
        # Of these. Those that the kubelet asks about meanwhile may be younger than the list.
        gone = self._users.keys() | self._choices.uids() | self.permits.pods()
        async for pod in pods:
            if is_named(pod):
                gone.discard(pod["metadata"]["uid"])
                await self._look(pod)
            del pod  # it may be of megabytes, as the next
        for uid in gone:
            self._forget(uid)
        async for kind, pod in self._api.watch("/api/v1/pods", fieldSelector=selector, resourceVersion=pods.version):
            if kind in ("ADDED", "MODIFIED") and is_named(pod):
                await self._look(pod)
            elif kind == "DELETED" and is_named(pod):
                self._forget(pod["metadata"]["uid"])
                self._later(self._end, pod)
            del pod

    async def _look(self, seen: dict[str, Any]) -> None:
        await self._try(self._check, seen)
        self._later(self._apply, seen)

    def _later(self, step: _Step, seen: dict[str, Any]) -> None:
        """Has `_act` do what takes its time, since a daemon and a disk have to answer, with the pod as last seen.

        One whose annotations change without end must not keep the others from being looked at. All else of a pod may
        take megabytes, and all pods of a node may wait here.
        """
        if self._shares_of(seen):
            meta = seen["metadata"]
            kept = {"metadata": {name: meta[name] for name in _KEPT if name in meta}}
            self._to_do[meta["uid"]] = (step, kept)
            self._woken.set()
        else:
            self._to_do.pop(seen["metadata"]["uid"], None)

    async def _act(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._to_do:
                step, seen = self._to_do.pop(next(iter(self._to_do)))
                await self._try(step, seen)

    async def _try(self, step: _Step, seen: dict[str, Any]) -> None:
        """Anybody may have written the pod: by what nobody foresaw in it the agent would end after each start."""
        try:
            await step(seen)
        except Exception:
            logger.exception("pod=%s/%s", seen["metadata"]["namespace"], seen["metadata"]["name"])

    def _shares_of(self, seen: dict[str, Any]) -> list[Share]:
        return [share for share in self._book.shares.values() if share.pod.is_of(seen["metadata"])]

    async def _apply(self, seen: dict[str, Any]) -> None:
        for share in self._shares_of(seen):
            await self._change(share, seen["metadata"])

    async def _check(self, seen: dict[str, Any]) -> None:
        """Says in which shares of claims a pod may start."""
        meta = seen["metadata"]
        if (name := choosing_annotation(seen)) is not None:
            self._choices.add(meta["uid"], name)
        ours = {
            share.claim[1]: share.id
            for share in self._book.shares.values()
            if share.claim and share.claim[0] == meta["namespace"]
        }
        ended = (seen.get("status") or {}).get("phase") in ENDED
        used = set() if ended else _used_by(seen, set(ours))
        if ended:
            self.permits.end(meta["uid"])
        if used:
            self._users[meta["uid"]] = (_pod(meta), used)
        else:
            self._users.pop(meta["uid"], None)
        shares = {ours[claim] for claim in used & ours.keys()}
        told = meta["uid"] in self.permits.refused()
        self.permits.take_back(meta["uid"], but=shares)
        if all(self.permits.said(share_id, meta["uid"]) for share_id in shares) and (
            not shares or told or self._choices.of(meta["uid"]) is None
        ):
            return  # of one that was checked only annotations change, and who may change them may do so without end
        refusal = self._trouble(seen, set(ours))
        for share_id in shares:
            self.permits.say(share_id, meta["uid"], refusal)
        if refusal is not None and not told:
            self._events.tell(_pod(meta), f"{refusal}; its containers do not start", reason="ShareRefused")

    def _trouble(self, seen: dict[str, Any], ours: set[str]) -> str | None:
        """Why a pod cannot be held to shares, the claims ``ours`` being shares; None if it can.

        In words: the error keeps the pod, until Python looks for cycles.
        """
        try:
            claims.check_pod(seen, ours, self._book.host.paths, host_pid=self._book.host.host_pid)
            if (name := self._choices.of(seen["metadata"]["uid"])) is not None:
                refuse_annotation(name)
        except BadRequest as error:
            return error_message(error)
        except Exception:  # as in `_try`; what cannot be checked is not let in either
            logger.exception("pod=%s/%s", seen["metadata"]["namespace"], seen["metadata"]["name"])
            return "gemlet: its containers cannot be checked; see the log of this node's gemlet-agent pod"
        return None

    def _forget(self, uid: str, share_id: str | None = None) -> None:
        """``share_id``: as in `Permits.end`."""
        self._users.pop(uid, None)
        self._choices.forget(uid)
        self.permits.end(uid, share_id)

    async def _end(self, seen: dict[str, Any]) -> None:
        # Sooner than the reaper: the next pod of that name must not be taken for this one. Claims are unprepared.
        for share in self._shares_of(seen):
            if share.claim is None:
                try:
                    await self._book.close(share.id)
                except (GemletError, OSError) as error:
                    logger.info("share=%s not closed yet: %s", share.id, error)

    async def _change(self, share: Share, meta: dict[str, Any]) -> None:
        try:
            asked = for_container(meta.get("annotations") or {}, share.pod.container)
            amounts = in_force(share.granted, asked)
            if amounts != share.amounts:
                await self._book.change(msgspec.structs.replace(share, amounts=amounts), before=share)
                logger.info("share=%s changed to %s", share.id, amounts)
            self._complained.pop(share.id, None)
        except KeyError:  # closed in the meantime, or held to less
            now = self._book.shares.get(share.id)
            if now not in (None, share) and now.pod.is_of(meta):
                await self._change(now, meta)
        except (GemletError, OSError) as error:
            self._complain(share, meta, error_message(error))

    def _complain(self, share: Share, meta: dict[str, Any], text: str) -> None:
        text = text[:MAX_TEXT]  # it quotes an annotation, of up to 256 KiB
        if self._complained.get(share.id) == text:
            return
        self._complained = {name: told for name, told in self._complained.items() if name in self._book.shares}
        if self._events.tell(_pod(meta), text, reason="ShareNotChanged"):
            self._complained[share.id] = text


def _used_by(seen: dict[str, Any], ours: set[str]) -> set[str]:
    """The claims that a pod uses; where that cannot be read, it may be any of ``ours``, and any other."""
    try:
        return claims.used_by(seen)
    except (LookupError, TypeError, AttributeError):  # `_trouble` says it
        return {*ours, _ANY}


def _pod(meta: dict[str, Any]) -> Pod:
    return Pod(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
