"""What a pod is told, as `kubectl describe` shows it: why it was refused, and other warnings.

The agent's answers to the kubelet (device_plugin.py, dra.py) carry `error_message`, and the kubelet makes an event of
them. `PodEvents` makes those that the kubelet has not asked about (pods.py, reaper.py, lost_gpus.py); the webhook makes
its own by `warning` (templates.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gemlet.daemon.logs import Limiter
from gemlet.errors import GemletError
from gemlet.kube.api_server import ApiError
from gemlet.kube.request import BadRequest

if TYPE_CHECKING:
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.share import Pod

logger = logging.getLogger(__name__)

MAX_TEXT = 1024  # of the apiserver
PER_MINUTE = 30  # of a namespace, of what its users can cause
MOST = 1000  # of those that wait to be made
RETRY_SECONDS = 2.0
TRY_SECONDS = 600.0  # for which one is tried again while the apiserver does not answer, or has too much to do
COMPONENT = "gemlet-agent"


def error_message(error: Exception) -> str:
    """An error as one line for an event: what, and what to do."""
    if not isinstance(error, (GemletError, OSError)):
        return f"gemlet: an error of its own, {error!r}; the log of the node's agent has more"
    if isinstance(error, BadRequest) or not isinstance(error, GemletError):
        return f"gemlet: {error}"
    return f"gemlet: {error.message}" + (f"; {error.hint}" if error.hint else "")


class PodEvents:
    """Makes the events of a node's agent, one after the other: who tells a pod something does not wait for it."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._limiter = Limiter(PER_MINUTE)
        self._waiting: deque[tuple[Pod, str, str, float]] = deque()  # the last: until when it is tried
        self._woken = asyncio.Event()

    def tell(self, pod: Pod, text: str, *, reason: str, limited: bool = True) -> bool:
        """Has an event made, and logs it, unless `MOST` wait or its namespace has had `PER_MINUTE` of them; neither
        keeps back what no user can cause, which is not ``limited``. Returns whether it did."""
        now = time.monotonic()
        if limited and (len(self._waiting) >= MOST or not self._limiter.allow(pod.namespace, now=now)[0]):
            return False
        logger.warning("pod=%s/%s %s: %s", pod.namespace, pod.name, reason, text)
        self._waiting.append((pod, text[:MAX_TEXT], reason, now + TRY_SECONDS))
        self._woken.set()
        return True

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.make()

    async def make(self) -> None:
        """Makes the events that there are to be made now."""
        while self._waiting:
            pod, text, reason, until = self._waiting.popleft()
            try:
                uid = pod.uid or (await self._api.get(pod.path))["metadata"]["uid"]
                meta = {"namespace": pod.namespace, "name": pod.name, "uid": uid}
                await self._api.create(*warning(meta, text, reason=reason, component=COMPONENT))
            except ApiError as error:
                logger.warning("event: %s", error)
                if not error.refused and time.monotonic() < until:
                    self._waiting.append((pod, text, reason, until))  # behind those with which it may be another thing
                    await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # what nobody foresaw in a pod must not end the agent
                logger.exception("event of pod=%s/%s", pod.namespace, pod.name)


def warning(meta: dict[str, Any], text: str, *, reason: str, component: str) -> tuple[str, dict[str, Any]]:
    """Where to create the event, and the event.

    meta: of the pod; reason: a word for programs; component: the source.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"/api/v1/namespaces/{meta['namespace']}/events", {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": "Warning",
        "reason": reason,
        "message": text[:MAX_TEXT],
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
