"""Admission of a pod: turns its annotations into a request that the scheduler knows, or says what is wrong. Pure.

The patch is the same if it is made twice, and a pod that asks for nothing is not touched.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gemlet.errors import InvalidValue
from gemlet.kube import names
from gemlet.kube.escape import check_escape
from gemlet.kube.quantity import format_bytes, parse_quantity
from gemlet.kube.request import (
    Amounts,
    BadRequest,
    from_annotations,
    limit_annotation,
    priority_annotation,
    resident_annotation,
)
from gemlet.kube.units import MEMORY_UNIT
from gemlet.model import Priority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Face = Literal["slots", "units", "dra"]
CLAIM = "gemlet"  # name of the claim in the pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What admission knows of the cluster. Sizes are those of the largest GPU, None where that is not known."""

    face: Face = "slots"
    gpu_memory: int | None = None
    slots_per_gpu: int = 4


def patch(pod: Mapping[str, Any], cluster: Cluster) -> list[dict[str, Any]]:
    """The JSON patch for a pod that is being made. Raises BadRequest for a pod that must not run."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    slot = cluster.gpu_memory // cluster.slots_per_gpu if cluster.gpu_memory and cluster.face == "slots" else None
    amounts = from_annotations(annotations, most=slot or cluster.gpu_memory)
    _check_init_containers(pod)
    holders = [number for number, container in enumerate(_containers(pod)) if _asks(container)]
    for number in holders:
        _check_resources(number, _containers(pod)[number])
    if amounts is None:
        _check_lone_annotations(annotations, holders, pod)
        for number in holders:
            check_escape(pod, _containers(pod)[number], f"spec.containers[{number}]")
        return []
    number = _chosen(pod, annotations)
    for each in sorted({number, *holders}):
        check_escape(pod, _containers(pod)[each], f"spec.containers[{each}]")
    if cluster.face == "dra":
        _check_claimants(pod)
        _check_no_other_gpu(number, (_containers(pod)[number].get("resources") or {}).get("limits") or {})
        return list(_claim(pod, number, amounts))
    return list(_counted(pod, number, amounts, cluster))


def template_name(amounts: Amounts) -> str:
    """The name of the ResourceClaimTemplate for an amount: the same amount has the same template."""
    return f"gemlet-{hashlib.sha256(json.dumps(_template_spec(amounts), sort_keys=True).encode()).hexdigest()[:12]}"


def template(amounts: Amounts, namespace: str) -> dict[str, Any]:
    """The ResourceClaimTemplate a share of these amounts is made from."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": template_name(amounts),
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED: "gemlet"},
        },
        "spec": _template_spec(amounts),
    }


def _template_spec(amounts: Amounts) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "apiVersion": names.CONFIG_API_VERSION,
        "kind": names.CONFIG_KIND,
        "computeLimit": amounts.limit,
    }
    if amounts.priority is not Priority.NORMAL:
        parameters["priority"] = str(amounts.priority)
    if amounts.resident is not None:
        parameters["resident"] = format_bytes(amounts.resident)
    return {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": names.DEVICE_CLASS,
                            "capacity": {
                                "requests": {
                                    "memory": format_bytes(amounts.memory),
                                    "compute": str(amounts.compute),
                                }
                            },
                        },
                    }
                ],
                "config": [{"requests": ["gpu"], "opaque": {"driver": names.DRIVER, "parameters": parameters}}],
            }
        }
    }


def _claim(pod: Mapping[str, Any], number: int, amounts: Amounts) -> Iterator[dict[str, Any]]:
    spec = pod["spec"]
    entry = {"name": CLAIM, "resourceClaimTemplateName": template_name(amounts)}
    present = spec.get("resourceClaims") or []
    others = [claim for claim in present if claim["name"] != CLAIM]
    if present != [*others, entry]:
        yield _set("/spec/resourceClaims", [*others, entry])
    container = spec["containers"][number]
    resources = dict(container.get("resources") or {})
    used = [claim for claim in resources.get("claims") or [] if claim["name"] != CLAIM]
    wanted = {**resources, "claims": [*used, {"name": CLAIM}]}
    if wanted != resources:
        yield _set(f"/spec/containers/{number}/resources", wanted)


def _counted(pod: Mapping[str, Any], number: int, amounts: Amounts, cluster: Cluster) -> Iterator[dict[str, Any]]:
    if cluster.face == "slots":
        part = 100 // cluster.slots_per_gpu
        if amounts.compute > part:
            raise BadRequest(
                f"metadata.annotations[{names.ANNOTATION_COMPUTE}]",
                f"{amounts.compute} is more than the {part} of a slot",
                hint=f"ask for {part} or less; {names.ANNOTATION_LIMIT} may be up to 100",
            )
        asked = {names.SLOT_RESOURCE: "1"}
    else:
        asked = {
            names.COMPUTE_RESOURCE: str(amounts.compute),
            names.MEMORY_RESOURCE: str(-(-amounts.memory // MEMORY_UNIT)),
        }
    resources = dict(pod["spec"]["containers"][number].get("resources") or {})
    wanted = {
        **resources,
        "limits": {**(resources.get("limits") or {}), **asked},
        "requests": {**(resources.get("requests") or {}), **asked},
    }
    _check_resources(number, {"resources": wanted})
    if wanted != resources:
        yield _set(f"/spec/containers/{number}/resources", wanted)


def _set(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}  # of an object's member that is there, "add" replaces it


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((pod.get("spec") or {}).get("containers") or [])


def _init_containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((pod.get("spec") or {}).get("initContainers") or [])


def _check_init_containers(pod: Mapping[str, Any]) -> None:
    # The kubelet gives an init container's devices to another container of the pod, and a share is one container's.
    for number, container in enumerate(_init_containers(pod)):
        if _asks(container):
            raise BadRequest(
                f"spec.initContainers[{number}].resources", "asks for a share", hint="ask for it in a container"
            )


def _check_claimants(pod: Mapping[str, Any]) -> None:
    """Of the claim that is added: any container of the pod may name it."""
    for kind, containers in (("initContainers", _init_containers(pod)), ("containers", _containers(pod))):
        for number, container in enumerate(containers):
            if any(claim["name"] == CLAIM for claim in (container.get("resources") or {}).get("claims") or []):
                check_escape(pod, container, f"spec.{kind}[{number}]")


def _asks(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    return any(name in (resources.get(kind) or {}) for kind in ("limits", "requests") for name in names.RESOURCES)


def _chosen(pod: Mapping[str, Any], annotations: Mapping[str, str]) -> int:
    containers = _containers(pod)
    meant = annotations.get(names.ANNOTATION_CONTAINER)
    field = f"metadata.annotations[{names.ANNOTATION_CONTAINER}]"
    known = ", ".join(container["name"] for container in containers)
    if meant is None:
        if len(containers) != 1:
            raise BadRequest(field, f"is missing, with {len(containers)} containers", hint=f"name one of {known}")
        return 0
    for number, container in enumerate(containers):
        if container["name"] == meant:
            return number
    raise BadRequest(field, f"names container {meant}, which the pod does not have", hint=f"name one of {known}")


def _check_lone_annotations(annotations: Mapping[str, str], holders: list[int], pod: Mapping[str, Any]) -> None:
    # Limit, class and resident memory without amounts apply to a slot, or to a claim of the pod's own.
    limit_annotation(annotations, 1)
    priority_annotation(annotations)
    resident_annotation(annotations, sys.maxsize)
    given = [name for name in names.ANNOTATIONS if name in annotations]
    if given and not holders and not (pod.get("spec") or {}).get("resourceClaims"):
        raise BadRequest(
            f"metadata.annotations[{given[0]}]",
            "has no effect: the pod asks for no share",
            hint=f"add {names.ANNOTATION_MEMORY} and {names.ANNOTATION_COMPUTE}",
        )


def _check_resources(number: int, container: Mapping[str, Any]) -> None:
    limits = (container.get("resources") or {}).get("limits") or {}
    where = f"spec.containers[{number}].resources.limits"
    given = [name for name in names.RESOURCES if name in limits]
    for name in given:
        try:
            count = parse_quantity(str(limits[name]))
        except InvalidValue as error:
            raise BadRequest(f"{where}[{name}]", error.message, hint="write a whole number") from None
        if count < 1:
            raise BadRequest(
                f"{where}[{name}]",
                f"{limits[name]} is not a valid share: expected 1 or more",
                hint="ask for 1 or more, or leave it out",
            )
        if name == names.SLOT_RESOURCE and count != 1:
            raise BadRequest(
                f"{where}[{name}]", f"a container takes exactly one slot, not {limits[name]}", hint="ask for 1"
            )
        if name == names.COMPUTE_RESOURCE and count > 100:
            raise BadRequest(f"{where}[{name}]", f"{limits[name]} is more than one GPU", hint="ask for 100 or less")
    if (names.COMPUTE_RESOURCE in given) != (names.MEMORY_RESOURCE in given):
        missing = names.MEMORY_RESOURCE if names.COMPUTE_RESOURCE in given else names.COMPUTE_RESOURCE
        raise BadRequest(f"{where}[{missing}]", "is missing", hint="ask for both time and memory")
    if names.SLOT_RESOURCE in given and len(given) > 1:
        raise BadRequest(
            f"{where}[{names.SLOT_RESOURCE}]", "is asked for together with units", hint="ask for one of the two"
        )
    if given:
        _check_no_other_gpu(number, limits)


def _check_no_other_gpu(number: int, limits: Mapping[str, Any]) -> None:
    if any(name.startswith("nvidia.com/") for name in limits):
        where = f"spec.containers[{number}].resources.limits"
        raise BadRequest(
            where, "asks for both a share and a GPU of NVIDIA's device plugin", hint="ask for one of the two"
        )
