"""The pods of a cluster that have a share now, for those who are about to take gemlet away. Pure, but for `find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet.kube import names
from gemlet.kube.api_server import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gemlet.kube.api_server import ApiServer

ENDED = ("Succeeded", "Failed")


def holders(pods: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]]) -> list[str]:
    """NAMESPACE/NAME of each pod that has been placed and not ended, and has one of gemlet's resources or claims."""
    reserved = {
        (claim["metadata"]["namespace"], user["name"])
        for claim in claims
        if _ours(claim)
        for user in (claim.get("status") or {}).get("reservedFor") or []
        if user.get("resource") == "pods"
    }
    found = []
    for pod in pods:
        place = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        alive = (pod.get("status") or {}).get("phase") not in ENDED and pod["spec"].get("nodeName")
        if alive and (place in reserved or _counted(pod)):
            found.append("/".join(place))
    return sorted(found)


async def find(api: ApiServer) -> list[str]:
    """The same of the cluster as it is. Raises ApiError."""
    pods = (await api.get("/api/v1/pods"))["items"]
    try:
        claims = (await api.get("/apis/resource.k8s.io/v1/resourceclaims"))["items"]
    except ApiError as error:
        if error.status not in (403, 404):  # a cluster, or an installation, without claims
            raise
        claims = []
    return holders(pods, claims)


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
