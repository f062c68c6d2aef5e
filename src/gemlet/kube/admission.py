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
from gemlet.kube import names, unit_claims
from gemlet.kube.ask import ATTRIBUTES, Annotations, Ask, asks
from gemlet.kube.escape import check_escape, check_mounts, is_counted, refuse_init_container
from gemlet.kube.quantity import format_bytes, parse_quantity
from gemlet.kube.request import (
    BadRequest,
    limit_annotation,
    priority_annotation,
    resident_annotation,
)
from gemlet.kube.units import MEMORY_UNIT
from gemlet.model import Priority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gemlet.kube.request import Amounts

Face = Literal["slots", "units", "dra"]
CLAIM = "gemlet"  # name of the claim in the pod; where several containers have one, gemlet-CONTAINER
MAX_NAME = 63
MOST_CONTAINERS = 1000
MOST_CHECKS = 100_000  # at annotations and volumes, for each container at all of its pod's: half a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What admission knows of the cluster. Sizes are those of the largest GPU, None where that is not known.
    ``host_paths`` and ``host_pid``: as in `check_escape`."""

    face: Face = "slots"
    gpu_memory: int | None = None
    slots_per_gpu: int = 4
    host_paths: tuple[str, ...] = ()
    host_pid: bool = False


def patch(pod: Mapping[str, Any], cluster: Cluster) -> list[dict[str, Any]]:
    """The JSON patch for a pod that is being made. Raises BadRequest for a pod that must not run."""
    _check_size(pod)
    said: list[dict[str, Any]] = []
    if cluster.face == "dra":
        _check_holders(pod)
        pod, said = unit_claims.by_annotations(pod)
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    slot = cluster.gpu_memory // cluster.slots_per_gpu if cluster.gpu_memory and cluster.face == "slots" else None
    asked = asks(pod, most=slot or cluster.gpu_memory)
    _check_init_containers(pod)
    holders = _check_holders(pod)
    if not asked:
        _check_lone_annotations(annotations, holders, pod)
    containers = _containers(pod)
    held = [(f"spec.containers[{number}]", containers[number]) for number in sorted({*asked, *holders})]
    check_escape(pod, held, cluster.host_paths, host_pid=cluster.host_pid, by_kubelet=cluster.face != "dra")
    if not asked:
        return []
    if cluster.face == "dra":
        claims = claim_names(pod, asked)
        _check_claimants(pod, set(claims.values()), cluster)
        for number in asked:
            _check_no_other_gpu(number, (containers[number].get("resources") or {}).get("limits") or {})
        return [*said, *_claims(pod, asked, claims)]
    return [operation for number, ask in asked.items() for operation in _counted(pod, number, ask, cluster)]


def claimed(pod: Mapping[str, Any]) -> list[Ask]:
    """What the containers of a pod ask for, where shares are claims. Raises BadRequest."""
    return list(asks(unit_claims.by_annotations(pod)[0]).values())


def claim_names(pod: Mapping[str, Any], asked: Mapping[int, Ask]) -> dict[int, str]:
    """The name that the claim of each container has in the pod. Not by number: what comes later may add containers."""
    if len(asked) == 1:
        return dict.fromkeys(asked, CLAIM)
    containers = _containers(pod)
    return {number: _claim_name(containers[number]["name"]) for number in asked}


def is_claim_name(name: str) -> bool:
    """Whether a claim of a pod is one that admission adds."""
    return name == CLAIM or name.startswith(f"{CLAIM}-")


def template_name(ask: Ask) -> str:
    """The name of the ResourceClaimTemplate of an ask: the same ask has the same template."""
    return f"gemlet-{_digest(_template_spec(ask))}"


def template(ask: Ask, namespace: str) -> dict[str, Any]:
    """The ResourceClaimTemplate a share of these amounts is made from."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": template_name(ask),
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED: "gemlet"},
        },
        "spec": _template_spec(ask),
    }


def _claim_name(container: str) -> str:
    name = f"{CLAIM}-{container}"
    return name if len(name) <= MAX_NAME else f"{CLAIM}-{_digest(container)}"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _template_spec(ask: Ask) -> dict[str, Any]:
    amounts = ask.amounts
    exactly: dict[str, Any] = {
        "deviceClassName": names.DEVICE_CLASS,
        "capacity": {"requests": {"memory": format_bytes(amounts.memory), "compute": str(amounts.compute)}},
    }
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters := _parameters(amounts):
        kind = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND}
        opaque = {"driver": names.DRIVER, "parameters": kind | parameters}
        devices["config"] = [{"requests": ["gpu"], "opaque": opaque}]
    if ask.gpus > 1:
        exactly["count"] = ask.gpus
        # Without this the scheduler may give two parts of one GPU.
        devices["constraints"] = [{"requests": ["gpu"], "distinctAttribute": f"{names.DRIVER}/uuid"}]
        if ask.together is not None:
            devices["constraints"].append({"requests": ["gpu"], "matchAttribute": ATTRIBUTES[ask.together]})
    return {"spec": {"devices": devices}}


def _parameters(amounts: Amounts) -> dict[str, Any]:
    """What a claim cannot say by its capacity. Only what is not so anyway: Kueue takes no claims with parameters."""
    parameters: dict[str, Any] = {}
    if amounts.limit != amounts.compute:
        parameters["computeLimit"] = amounts.limit
    if amounts.priority is not Priority.NORMAL:
        parameters["priority"] = str(amounts.priority)
    if amounts.resident is not None:
        parameters["resident"] = format_bytes(amounts.resident)
    return parameters


def _claims(pod: Mapping[str, Any], asked: Mapping[int, Ask], claims: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    spec = pod["spec"]
    ours = set(claims.values())
    present = spec.get("resourceClaims") or []
    wanted = [claim for claim in present if claim["name"] not in ours]
    wanted += [
        {"name": claims[number], "resourceClaimTemplateName": template_name(ask)} for number, ask in asked.items()
    ]
    if present != wanted:
        yield _set("/spec/resourceClaims", wanted)
    for number in asked:
        resources = dict(spec["containers"][number].get("resources") or {})
        used = [claim for claim in resources.get("claims") or [] if claim["name"] not in ours]
        changed = {**resources, "claims": [*used, {"name": claims[number]}]}
        if changed != resources:
            yield _set(f"/spec/containers/{number}/resources", changed)


def _counted(pod: Mapping[str, Any], number: int, ask: Ask, cluster: Cluster) -> Iterator[dict[str, Any]]:
    amounts = ask.amounts
    if ask.gpus > 1:
        raise BadRequest(
            f"metadata.annotations[{names.ANNOTATION_GPUS}]",
            f"{ask.gpus} is more than the one GPU that {cluster.face} are of",
            hint="leave it out, or offer the cluster's GPUs by claims: mode: dra",
        )
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


def _check_size(pod: Mapping[str, Any]) -> None:
    """The apiserver asks before it checks how large a pod's parts are, and others wait for the answer."""
    containers = len(_containers(pod)) + len(_init_containers(pod))
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    checks = containers * (len(annotations) + len((pod.get("spec") or {}).get("volumes") or []))
    if containers > MOST_CONTAINERS or checks > MOST_CHECKS:
        raise BadRequest(
            "spec.containers",
            f"{containers} with {len(annotations)} annotations are too many to be checked",
            hint="make several pods of it",
        )
    check_mounts((*_containers(pod), *_init_containers(pod)))


def _check_init_containers(pod: Mapping[str, Any]) -> None:
    for number, container in enumerate(_init_containers(pod)):
        if is_counted(container):
            refuse_init_container(number)


def _check_claimants(pod: Mapping[str, Any], ours: set[str], cluster: Cluster) -> None:
    """Of the claims that are added: any container of the pod may name them."""
    claimants = [
        (f"spec.{kind}[{number}]", container)
        for kind, containers in (("initContainers", _init_containers(pod)), ("containers", _containers(pod)))
        for number, container in enumerate(containers)
        if any(claim["name"] in ours for claim in (container.get("resources") or {}).get("claims") or [])
    ]
    check_escape(pod, claimants, cluster.host_paths, host_pid=cluster.host_pid)


def _check_holders(pod: Mapping[str, Any]) -> list[int]:
    """The containers that ask by a resource of gemlet's."""
    holders = [number for number, container in enumerate(_containers(pod)) if is_counted(container)]
    for number in holders:
        _check_resources(number, _containers(pod)[number])
    return holders


def _check_lone_annotations(annotations: Mapping[str, str], holders: list[int], pod: Mapping[str, Any]) -> None:
    # Limit, class and resident memory without amounts apply to a slot, or to a claim of the pod's own.
    each = Annotations(annotations)
    for container in _containers(pod):
        own = each.of(container["name"])
        limit_annotation(own, 1)
        priority_annotation(own)
        resident_annotation(own, sys.maxsize)
    given = sorted(name for name in annotations if name.startswith(f"{names.DRIVER}/") or f".{names.DRIVER}/" in name)
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
        if count.denominator != 1:  # where units become a claim, the apiserver does not see them
            raise BadRequest(
                f"{where}[{name}]", f"{limits[name]} is not a whole number", hint="ask for 1 or more, in whole numbers"
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
