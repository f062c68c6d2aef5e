"""ResourceSlices: what a node offers to the scheduler. Pure, but for `publish`.

Capacity is consumable: each claim takes `memory` and `compute` of a GPU, and the scheduler adds up. A GPU that nothing
can be placed on now has a taint; the claims that have it keep it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gemlet.config.quantities import MIB
from gemlet.kube import names
from gemlet.kube.api_server import ApiError
from gemlet.kube.quantity import format_bytes
from gemlet.kube.request import MIN_MEMORY

if TYPE_CHECKING:
    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.device_plugin import Gpus
    from gemlet.kube.inventory import Gpu

logger = logging.getLogger(__name__)

CONTENT = f"{names.DRIVER}/content"  # digest of the devices: the apiserver may write what we send in other words
MAX_NODE = 200  # characters of a node's name in that of its slice: both have 253
PATH = "/apis/resource.k8s.io/v1/resourceslices"

Effect = Literal["NoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class Taint:
    """Why no claim is to be placed on a GPU now; NoExecute also ends the pods that have it."""

    key: str
    effect: Effect = "NoSchedule"


def taint(gpu: Gpu, gpus: Gpus, *, failed: Effect) -> Taint | None:
    """Of one GPU. ``failed``: for one that NVML does not show any more."""
    if gpu.uuid not in gpus.healthy:
        return Taint(names.TAINT_FAILED, failed)
    return None if gpus.serving else Taint(names.TAINT_NO_DAEMON)


def device(gpu: Gpu, taint: Taint | None = None) -> dict[str, Any]:
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
    made = {
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
    if taint is not None:
        made["taints"] = [{"key": taint.key, "effect": taint.effect}]
    return made


def resource_slice(
    node: str,
    devices: list[dict[str, Any]],
    *,
    generation: int,
    owner: dict[str, Any] | None,
    content: str | None = None,
) -> dict[str, Any]:
    """The node's one slice. ``owner``: its Node object, so that the slice goes with it. ``content``: the digest of what
    the devices should be, where the cluster does not take all of it."""
    made: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": f"{node[:MAX_NODE].rstrip('.-')}-{names.DRIVER}-",
            "annotations": {CONTENT: content or _digest(devices)},
        },
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


async def publish(api: ApiServer, node: str, devices: list[dict[str, Any]]) -> bool:
    """Brings the node's slices up to date; False if they were. Raises ApiError.

    The kubelet deletes them when it starts and when the driver goes away, so this is checked again and again. A cluster
    without taints of devices (before 1.36) drops them without a word: there a GPU that has one is not offered at all.
    One without consumable capacity drops that, and then no claim is ever given a part: this is an error of the log.
    """
    try:
        return await _publish(api, node, devices)
    except (LookupError, TypeError, AttributeError) as error:
        raise ApiError(f"{PATH}: what came cannot be read: {error!r}") from None


async def _publish(api: ApiServer, node: str, devices: list[dict[str, Any]]) -> bool:
    digest = _digest(devices)
    selector = f"spec.nodeName={node},spec.driver={names.DRIVER}"
    present = (await api.get(PATH, fieldSelector=selector))["items"]
    if [(item["metadata"].get("annotations") or {}).get(CONTENT) for item in present] == [digest]:
        return False
    generation = max((item["spec"]["pool"]["generation"] for item in present), default=0) + 1
    owner = await api.get(f"/api/v1/nodes/{node}")
    made = await api.create(PATH, resource_slice(node, devices, generation=generation, owner=owner))
    if not all(entry.get("allowMultipleAllocations") for entry in made["spec"]["devices"]):
        logger.error(
            "slices: this cluster gives no parts of devices, and no pod gets a share; enable the feature gate "
            "DRAConsumableCapacity (on since Kubernetes 1.36), or install the chart with mode: device-plugin"
        )
    wanted = [entry for entry in devices if "taints" not in entry]
    if len(wanted) < len(devices) and not any("taints" in entry for entry in made["spec"]["devices"]):
        less = resource_slice(node, wanted, generation=generation + 1, owner=owner, content=digest)
        await api.create(PATH, less)
        present.append(made)
    for item in present:
        await api.delete(f"{PATH}/{item['metadata']['name']}")
    return True


def _digest(devices: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:16]
