"""Claims as a user writes them, without the webhook."""

from __future__ import annotations

from typing import Any


def request(name: str = "gpu", *, memory: str = "16Gi", compute: str = "25", **more: Any) -> dict[str, Any]:
    """One request of a claim; ``more`` goes into its `exactly`: count, selectors."""
    exactly = {
        "deviceClassName": "share.gemlet.dev",
        "capacity": {"requests": {"memory": memory, "compute": compute}},
        **more,
    }
    return {"name": name, "exactly": exactly}


def template(
    name: str, *requests: dict[str, Any], constraints: list[Any] | None = None, **parameters: Any
) -> dict[str, Any]:
    """A ResourceClaimTemplate: of one request of 16 GiB and 25 % if none are given. ``parameters``: a ShareConfig's."""
    devices: dict[str, Any] = {"requests": list(requests) or [request()]}
    if constraints:
        devices["constraints"] = constraints
    if parameters:
        config = {"apiVersion": "gemlet.dev/v1alpha1", "kind": "ShareConfig", **parameters}
        devices["config"] = [{"opaque": {"driver": "gemlet.dev", "parameters": config}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": devices}},
    }


def claiming(pod: dict[str, Any], *templates: str) -> dict[str, Any]:
    """``pod`` with a claim from each template, all of them in its one container."""
    pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": name} for name in templates]}
    return pod
