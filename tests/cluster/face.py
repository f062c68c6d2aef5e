"""The ways in which gemlet offers a node's GPUs, as far as tests that are the same for all of them must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.processes import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.cluster import Cluster
    from tests.cluster.node import Node


@dataclass(frozen=True)
class Face:
    """One of them.

    values: the chart's. full: what a node of two GPUs offers, in slots or in devices. waits: what the scheduler says of
    a pod for which there is no room. registered: what the agent's log says when the kubelet has taken it.
    """

    name: str
    values: Mapping[str, Any]
    full: int
    waits: str
    registered: str

    def offered(self, cluster: Cluster, node: str = "n1") -> int:
        """What the node offers now."""
        if self.name == "dra":
            return len([device for device in devices(cluster, node) if not device.get("taints")])
        return cluster.allocatable(node=node)

    def ready(self, cluster: Cluster, node: str = "n1") -> None:
        """Waits until the node offers everything."""
        eventually(lambda: self.offered(cluster, node) == self.full, f"all GPUs of {node} offered")

    def registrations(self, cluster: Cluster, node: Node) -> int:
        """How often the agent of a node has been taken by its kubelet."""
        return cluster.gemlet.log("agent", node).count(self.registered)


SLOTS = Face(
    "slots", {"mode": "device-plugin"}, 8, "Insufficient gemlet.dev/share", "resource=gemlet.dev/share registered"
)
DRA = Face("dra", {"mode": "dra"}, 2, "cannot allocate all claims", "driver=gemlet.dev registered")
only_dra = pytest.mark.parametrize("face", ["dra"], indirect=True, scope="session")
only_slots = pytest.mark.parametrize("face", ["slots"], indirect=True, scope="session")
FACES = {face.name: face for face in (SLOTS, DRA)}


def devices(cluster: Cluster, node: str = "n1") -> list[dict[str, Any]]:
    """What the ResourceSlices of a node offer."""
    items = cluster.get("resourceslices", "--field-selector", f"spec.nodeName={node}")["items"]
    return [device for item in items for device in item["spec"]["devices"]]
