"""Tells pods by an event that a GPU of theirs has failed: with slots they would not learn it otherwise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.kube.book import ShareBook
    from gemlet.kube.device_plugin import Gpus
    from gemlet.kube.pod_events import PodEvents

logger = logging.getLogger(__name__)


class LossTeller:
    """Follows the GPUs of this node."""

    def __init__(self, events: PodEvents, book: ShareBook, gpus: Gpus) -> None:
        self._events = events
        self._book = book
        self._gpus = gpus

    async def run(self) -> None:
        """Runs until cancelled."""
        known: set[str] = set()
        while True:
            async with self._gpus.next_change() as change:
                lost = {gpu.uuid for gpu in self._gpus.all} - self._gpus.healthy
                for uuid in sorted(lost - known):
                    self._tell(uuid)
                known = lost
                await change

    def _tell(self, uuid: str) -> None:
        text = f"gemlet: {uuid} does not answer any more, and what runs on it fails; delete the pod to place it anew"
        shares = [share for share in self._book.shares.values() if uuid in share.gpus]
        logger.error("gpu=%s lost shares=%d", uuid, len(shares))
        pods = {(share.pod.namespace, share.pod.name): share.pod for share in shares}
        for pod in pods.values():
            if pod.name:  # else the kubelet has not said yet whose it is
                self._events.tell(pod, text, reason="GpuLost", limited=False)
