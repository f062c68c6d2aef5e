"""Which container has which device, from the kubelet, the only reliable source: Allocate does not learn of the pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.kube import rpc
from gemlet.kube.protocol import podresources_pb2 as messages
from gemlet.kube.share import Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gemlet.kube.kubelet_checkpoint import KubeletCheckpoint

SECONDS = 5.0


class KubeletUnreachable(GemletError):
    """The kubelet does not answer on its pod-resources socket."""


@dataclass(frozen=True, slots=True)
class Assignments:
    """What containers have: (resource, device id) -> container, with the pod's uid as the kubelet has it, if known.

    uids: of the pods that have each, or had it when the kubelet last gave something out, by its own checkpoint. It has
    those, too, of which a kubelet that has started without an apiserver does not know yet.
    """

    holders: dict[tuple[str, str], Pod] = field(default_factory=dict)
    uids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def holder(self, resource: str, ids: Iterable[str]) -> Pod | None:
        """The one container that has all of ``ids``, None if there is none."""
        found = {self.holders.get((resource, device)) for device in ids}
        return found.pop() if len(found) == 1 else None

    def ids(self, resource: str, pod: Pod) -> list[str]:
        """What a container has of a resource."""
        return sorted(device for (name, device), holder in self.holders.items() if name == resource and holder == pod)


class PodResources:
    """The pod-resources API at a socket, and what the kubelet's ``checkpoint`` adds to it."""

    def __init__(self, socket: Path, checkpoint: KubeletCheckpoint) -> None:
        self._socket = socket
        self._checkpoint = checkpoint

    async def assignments(self) -> Assignments:
        """All of this node, now. Raises `KubeletUnreachable`."""
        request = messages.ListPodResourcesRequest()
        try:
            reply = await rpc.call(self._socket, "v1.PodResourcesLister", "List", request, seconds=SECONDS)
        except rpc.CallFailed as error:
            raise KubeletUnreachable(
                f"the kubelet does not say which container has which device: {error}",
                hint=f"check that it runs and that {self._socket} is mounted into the agent",
            ) from None
        return read(reply, self._checkpoint.uids())


def read(reply: messages.ListPodResourcesResponse, uids: Mapping[tuple[str, str], str]) -> Assignments:
    """The kubelet's answer as a table. ``uids``: of pods, by what they have."""
    return Assignments(
        {
            (devices.resource_name, device): Pod(
                namespace=pod.namespace,
                name=pod.name,
                container=container.name,
                uid=uids.get((devices.resource_name, device), ""),
            )
            for pod in reply.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device in devices.device_ids
        },
        uids,
    )
