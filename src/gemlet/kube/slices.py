"""ResourceSlices: what a node offers to the scheduler. Pure, but for `publish`.

Capacity is consumable: each claim takes `memory` and `compute` of a GPU, and the scheduler adds up.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from gemlet.config.quantities import MIB
from gemlet.kube import names
from gemlet.kube.quantity import format_bytes
from gemlet.kube.request import MIN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.inventory import Gpu

CONTENT = f"{names.DRIVER}/content"  # digest of the devices: the apiserver may write what we send in other words
PATH = "/apis/resource.k8s.io/v1/resourceslices"


def device(gpu: Gpu) -> dict[str, Any]:
    """One GPU as the scheduler sees it. Attributes that are not known are left out."""
    memory = format_bytes(gpu.memory // MIB * MIB)
    attributes: dict[str, dict[str, Any]] = {
        "uuid": {"string": gpu.uuid},
        "index": {"int": gpu.index},
        "productName": {"string": gpu.name[:64]},
    }
    if gpu.compute_capability is not None:
        attributes["cudaComputeCapability"] = {"version": "{}.{}.0".format(*gpu.compute_capability)}
    if gpu.pcie_root is not None:
        attributes["resource.kubernetes.io/pcieRoot"] = {"string": gpu.pcie_root}
    if gpu.numa is not None:
        attributes["numaNode"] = {"int": gpu.numa}
    if gpu.nvlink is not None:
        attributes["nvlink"] = {"string": gpu.nvlink}
    return {
        "name": gpu.device,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {
            "memory": {
                "value": memory,
                "requestPolicy": {
                    "default": memory,
                    "validRange": {"min": format_bytes(MIN_MEMORY), "step": "1Mi", "max": memory},
                },
            },
            "compute": {
                "value": "100",
                "requestPolicy": {"default": "100", "validRange": {"min": "1", "step": "1", "max": "100"}},
            },
        },
    }


def resource_slice(node: str, gpus: Iterable[Gpu], *, generation: int, owner: dict[str, Any] | None) -> dict[str, Any]:
    """The node's one slice. ``owner``: its Node object, so that the slice goes with it."""
    devices = [device(gpu) for gpu in gpus]
    made: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{node}-{names.DRIVER}-", "annotations": {CONTENT: _digest(devices)}},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner["metadata"]["uid"]}
        made["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return made


async def publish(api: ApiServer, node: str, gpus: Iterable[Gpu]) -> bool:
    """Brings the node's slices up to date; False if they were. Raises ApiError.

    The kubelet deletes them when it starts and when the driver goes away, so this is checked again and again.
    """
    gpus = list(gpus)
    digest = _digest([device(gpu) for gpu in gpus])
    selector = f"spec.nodeName={node},spec.driver={names.DRIVER}"
    present = (await api.get(PATH, fieldSelector=selector))["items"]
    if [(item["metadata"].get("annotations") or {}).get(CONTENT) for item in present] == [digest]:
        return False
    newest = max((item["spec"]["pool"]["generation"] for item in present), default=0)
    owner = await api.get(f"/api/v1/nodes/{node}")
    await api.create(PATH, resource_slice(node, gpus, generation=newest + 1, owner=owner))
    for item in present:
        await api.delete(f"{PATH}/{item['metadata']['name']}")
    return True


def _digest(devices: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:16]
