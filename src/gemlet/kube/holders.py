"""The pods of a cluster that have a share now, for those who are about to take gemlet away. Pure, but for `find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet.kube import names
from gemlet.kube.api_server import ApiError, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.kube.api_server import ApiServer

ENDED = ("Succeeded", "Failed")


async def find(api: ApiServer) -> list[str]:
    """NAMESPACE/NAME of each pod of the cluster that has a share now. Raises ApiError."""
    reserved: set[tuple[str, str]] = set()
    try:
        async for claim in api.listed("/apis/resource.k8s.io/v1/resourceclaims"):
            reserved |= users(claim)
    except ApiError as error:
        if error.status not in (403, 404):  # a cluster, or an installation, without claims
            raise
    return sorted(["/".join(place_of(pod)) async for pod in api.listed("/api/v1/pods") if holds(pod, reserved)])


def users(claim: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Namespace and name of each pod that has a claim, if the claim is one of gemlet's."""
    if not _ours(claim):
        return set()
    return {
        (claim["metadata"]["namespace"], user["name"])
        for user in (claim.get("status") or {}).get("reservedFor") or []
        if user.get("resource") == "pods"
    }


def holds(pod: Mapping[str, Any], reserved: set[tuple[str, str]]) -> bool:
    """Whether a pod has been placed and not ended, and has one of gemlet's resources, or a claim by ``reserved``."""
    alive = (pod.get("status") or {}).get("phase") not in ENDED and pod["spec"].get("nodeName")
    return bool(alive) and (place_of(pod) in reserved or _counted(pod))


def _ours(claim: Mapping[str, Any]) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return any(result.get("driver") == names.DRIVER for result in results)


def _counted(pod: Mapping[str, Any]) -> bool:
    return any(
        name in ((container.get("resources") or {}).get("limits") or {})
        for container in pod["spec"].get("containers") or []
        for name in names.RESOURCES
    )
