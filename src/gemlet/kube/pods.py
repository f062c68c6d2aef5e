"""Follows the pods of this node: an annotation that is changed changes the share of a running pod.

GaiaGPU's dynamic allocation. An annotation that makes no sense changes nothing, and the pod gets an event that says
why.

The kubelet has a claim prepared for the first pod that uses it, and tells nobody of the next ones, nor of annotations
that change. So each pod is checked here, too: while one would leave its share, no container starts in that share.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.errors import GemletError
from gemlet.kube import claims
from gemlet.kube.api_server import ApiError
from gemlet.kube.ask import for_container
from gemlet.kube.device_plugin import error_message
from gemlet.kube.pod_event import MAX_TEXT, warning
from gemlet.kube.request import BadRequest, in_force

if TYPE_CHECKING:
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.book import ShareBook
    from gemlet.kube.share import Pod, Share

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
ENDED = ("Succeeded", "Failed")


def pod_path(pod: Pod) -> str:
    """Where the apiserver has a pod."""
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


class PodFollower:
    """Applies the annotations of the pods on ``node`` to their shares."""

    def __init__(self, api: ApiServer, book: ShareBook, node: str) -> None:
        self._api = api
        self._book = book
        self._node = node
        self._withheld: dict[str, set[str]] = {}  # shares by the uid of the pod for which they are withheld
        self._complained: dict[str, str] = {}  # by share, the last text; of those that there are

    async def seen(self, pod: Pod) -> dict[str, Any]:
        """A pod as it is now. Raises ApiError."""
        found: dict[str, Any] = await self._api.get(pod_path(pod))
        return found

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self._follow()
            except ApiError as error:
                logger.warning("pods: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        selector = f"spec.nodeName={self._node}"
        pods = self._api.listed("/api/v1/pods", fieldSelector=selector)
        there = set()
        async for pod in pods:
            there.add(pod["metadata"]["uid"])
            await self._try_to_apply(pod)
        for uid in self._withheld.keys() - there:
            self._release(uid)
        async for kind, pod in self._api.watch("/api/v1/pods", fieldSelector=selector, resourceVersion=pods.version):
            if kind in ("ADDED", "MODIFIED"):
                await self._try_to_apply(pod)
            elif kind == "DELETED":
                self._release(pod["metadata"]["uid"])
                await self._end(pod)

    async def _try_to_apply(self, seen: dict[str, Any]) -> None:
        """Anybody may have written the pod: by what nobody foresaw in it the agent would end after each start."""
        try:
            await self._apply(seen)
        except Exception:
            logger.exception("pod=%s/%s", seen["metadata"]["namespace"], seen["metadata"]["name"])

    async def _apply(self, seen: dict[str, Any]) -> None:
        meta = seen["metadata"]
        await self._check(seen)
        for share in list(self._book.shares.values()):
            if (share.pod.namespace, share.pod.name) == (meta["namespace"], meta["name"]):
                await self._change(share, meta)

    async def _check(self, seen: dict[str, Any]) -> None:
        """Withholds the shares of claims from a pod that they could not hold."""
        meta = seen["metadata"]
        ours = {
            share.claim[1]: share.id
            for share in self._book.shares.values()
            if share.claim and share.claim[0] == meta["namespace"]
        }
        ended = (seen.get("status") or {}).get("phase") in ENDED
        used = set() if ended or not ours else claims.used_by(seen, set(ours))
        try:
            if used:
                claims.check_pod(seen, set(ours), self._book.host.kept)
        except BadRequest as error:
            shares = {ours[name] for name in used}
            before = self._withheld.get(meta["uid"])
            self._withheld[meta["uid"]] = shares
            try:
                for share_id in shares:
                    self._book.withhold(share_id, meta["uid"])
                for share_id in (before or set()) - shares:
                    self._book.release(share_id, meta["uid"])
            except OSError as trouble:
                logger.error("shares of pod=%s/%s not withheld: %s", meta["namespace"], meta["name"], trouble)
            if before is None:
                text = f"{error_message(error)}; until then no container starts in its share"
                await self._tell(meta, text, reason="ShareWithheld")
        else:
            self._release(meta["uid"])

    def _release(self, uid: str) -> None:
        try:
            for share_id in self._withheld.pop(uid, ()):
                self._book.release(share_id, uid)
        except OSError as error:
            logger.warning("share not given back: %s", error)  # `restore` does it

    async def _end(self, seen: dict[str, Any]) -> None:
        # Sooner than the reaper: the next pod of that name must not be taken for this one. Claims are unprepared.
        meta = seen["metadata"]
        for share in list(self._book.shares.values()):
            if share.claim is None and (share.pod.namespace, share.pod.name) == (meta["namespace"], meta["name"]):
                try:
                    await self._book.close(share.id)
                except (GemletError, OSError) as error:
                    logger.info("share=%s not closed yet: %s", share.id, error)

    async def _change(self, share: Share, meta: dict[str, Any]) -> None:
        try:
            asked = for_container(meta.get("annotations") or {}, share.pod.container)
            amounts = in_force(share.granted, asked)
            if amounts != share.amounts:
                await self._book.change(msgspec.structs.replace(share, amounts=amounts))
                logger.info("share=%s changed to %s", share.id, amounts)
            self._complained.pop(share.id, None)
        except KeyError:
            pass  # closed in the meantime
        except (GemletError, OSError) as error:
            await self._complain(share, meta, error_message(error))

    async def _complain(self, share: Share, meta: dict[str, Any], text: str) -> None:
        text = text[:MAX_TEXT]  # it quotes an annotation, of up to 256 KiB
        if self._complained.get(share.id) == text:
            return
        self._complained = {name: told for name, told in self._complained.items() if name in self._book.shares}
        self._complained[share.id] = text
        await self._tell(meta, text, reason="ShareNotChanged")

    async def _tell(self, meta: dict[str, Any], text: str, *, reason: str) -> None:
        logger.warning("pod=%s/%s %s: %s", meta["namespace"], meta["name"], reason, text)
        try:
            await self._api.create(*warning(meta, text, reason=reason, component="gemlet-agent"))
        except ApiError as error:
            logger.warning("event: %s", error)
