"""What the scheduler has allocated to a claim, read as a share. Pure.

Only `status.allocation` counts: the spec is a wish, and gemlet enforces the amounts that the scheduler consumed for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.kube import names
from gemlet.kube.escape import check_escape
from gemlet.kube.request import Amounts, BadRequest, Settings, checked_memory, checked_percent, from_parameters
from gemlet.kube.share import Pod, Share, group_name, share_id_of_claim

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gemlet.kube.inventory import Gpu

_RESULTS = "status.allocation.devices.results"
_CONFIG = "status.allocation.devices.config"
NOTHING = Amounts(memory=0, compute=0, limit=1)  # the limit is what a group has at least
_Known = tuple[str, "int | None"]  # UUID of a GPU and its memory, None where that is not asked


def read_claim(claim: Mapping[str, Any], *, uid: str, pool: str, gpus: Mapping[str, Gpu]) -> Share:
    """The share of a ResourceClaim. ``gpus``: by device name, of this node, which is ``pool``.

    Raises BadRequest if it is not the claim with ``uid`` any more, or allocated in a way that cannot be enforced.
    """
    meta = claim["metadata"]
    if meta.get("uid") != uid:
        raise BadRequest(
            "metadata.uid",
            f"is {meta.get('uid')}, not {uid}",
            hint="try again: the claim was replaced by another of that name",
        )
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise BadRequest("status.allocation", "is missing", hint="allocate the claim again: it is no longer in use")
    for number, entry in enumerate((claim.get("status") or {}).get("reservedFor") or []):
        if entry.get("apiGroup") or entry.get("resource") != "pods":  # whose containers nobody would check
            raise BadRequest(
                f"status.reservedFor[{number}]",
                f"is one of {entry.get('resource')}, and only pods can be held to shares",
                hint="let each pod name the claim",
            )
    known = {name: (gpu.uuid, gpu.memory) for name, gpu in gpus.items()}
    granted, gpu_uuids, requests = _granted(allocation, pool, known)
    return Share(
        id=share_id_of_claim(uid),
        group=group_name(meta["namespace"], meta["name"]),
        gpus=gpu_uuids,
        granted=granted,
        amounts=granted,
        claim=(meta["namespace"], meta["name"]),
        claim_uid=uid,
        requests=requests,
        # Without its uid: while others use the claim, the next pod of that name takes its place.
        pod=Pod(namespace=meta["namespace"], name=next((pod.name for pod in pods_of(claim)), "")),
        opened=time.time(),
    )


def counted(share: Share, claim: Mapping[str, Any], pool: str) -> Share:
    """``share`` with what the scheduler counts for it now that its ``claim`` is allocated so; nothing for other GPUs.

    A claim that no pod has any more is allocated anew. Then the kubelet lets a pod start in what it has prepared
    before, if it has not ended the last one yet, as after `kubectl delete --force`.
    """
    known = {name: (uuid, None) for name, uuid in zip(share.requests, share.gpus, strict=True)}
    try:
        granted, uuids, requests = _granted(claim["status"]["allocation"], pool, known)
        if sorted(uuids) != sorted(share.gpus):
            granted, requests = NOTHING, share.requests
    except (BadRequest, ValueError, LookupError, TypeError, AttributeError):  # what cannot be read is not given either
        granted, requests = NOTHING, share.requests
    if share.is_of(granted, requests):
        return share
    return msgspec.structs.replace(share, granted=granted, amounts=granted, requests=requests)


def pods_of(claim: Mapping[str, Any]) -> list[Pod]:
    """The pods for which a claim is reserved; all are in its namespace."""
    namespace, reserved = claim["metadata"]["namespace"], (claim.get("status") or {}).get("reservedFor") or []
    return [
        Pod(namespace=namespace, name=entry["name"], uid=entry.get("uid", ""))
        for entry in reserved
        if entry.get("resource") == "pods"
    ]


def container_of(pod: Mapping[str, Any], claim: str) -> str:
    """The one container of ``pod`` that uses ``claim``; "" if several do."""
    claims = _claims_of(pod)
    users = [
        container["name"]
        for kind in ("initContainers", "containers")
        for container in pod["spec"].get(kind) or []
        if claim in _used(container, claims, pod).values()
    ]
    return users[0] if len(users) == 1 else ""


def used_by(pod: Mapping[str, Any]) -> set[str]:
    """The claims that containers of ``pod`` use, of whatever driver."""
    claims = _claims_of(pod)
    return {
        claim
        for kind in ("initContainers", "containers")
        for container in pod["spec"].get(kind) or []
        for claim in _used(container, claims, pod).values()
        if claim is not None
    }


def check_pod(
    pod: Mapping[str, Any], ours: set[str], host_paths: Collection[str] = (), *, host_pid: bool = False
) -> None:
    """Raises BadRequest if a container of ``pod`` cannot be held to its share, the claims ``ours`` being shares.
    ``host_paths`` and ``host_pid``: as in `check_escape`.

    A container can be in one share only, and nothing of its own may take it out of that.
    """
    spec, claims = pod["spec"], _claims_of(pod)
    held: list[tuple[str, Mapping[str, Any]]] = []
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or []):
            shares = sorted(name for name, claim in _used(container, claims, pod).items() if claim in ours)
            if len(shares) > 1:
                raise BadRequest(
                    f"spec.{kind}[{container['name']}].resources.claims",
                    f"{' and '.join(shares)} are both shares of GPUs",
                    hint="ask for several GPUs in one claim, with count or with several requests",
                )
            if shares:
                held.append((f"spec.{kind}[{number}]", container))
    check_escape(pod, held, host_paths, host_pid=host_pid)


def _used(
    container: Mapping[str, Any], claims: Mapping[str, str | None], pod: Mapping[str, Any]
) -> dict[str, str | None]:
    """The claims that a container uses by what it calls them: names of ``claims``, or of resources. For resources of a
    device class (since Kubernetes 1.36) the scheduler makes a claim that the pod's specification does not name."""
    names_of_claims = [entry["name"] for entry in (container.get("resources") or {}).get("claims") or []]
    by_resources = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return {name: claims.get(name) for name in names_of_claims} | {
        mapping["resourceName"]: by_resources.get("resourceClaimName")
        for mapping in by_resources.get("requestMappings") or []
        if mapping["containerName"] == container["name"]
    }


def _claims_of(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """The claims of a pod by the names they have in it."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    made = {entry["name"]: entry.get("resourceClaimName") for entry in statuses}
    entries = pod["spec"].get("resourceClaims") or []
    return {entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"]) for entry in entries}


def _granted(
    allocation: Mapping[str, Any], pool: str, gpus: Mapping[str, _Known]
) -> tuple[Amounts, tuple[str, ...], dict[str, tuple[str, ...]]]:
    """What is allocated of each GPU, their UUIDs, and the requests by device. Raises BadRequest."""
    devices = allocation.get("devices") or {}
    results = [result for result in devices.get("results") or [] if result.get("driver") == names.DRIVER]
    if not results:
        raise BadRequest(_RESULTS, f"has no device of {names.DRIVER}", hint="ask for one in spec.devices.requests")
    amounts, uuids, requests = _consumed(results, pool, gpus)
    settings = _configured(devices.get("config") or [], results, amounts)
    granted = Amounts(
        memory=amounts.memory,
        compute=amounts.compute,
        limit=settings.limit,
        priority=settings.priority,
        resident=settings.resident,
    )
    return granted, uuids, requests


def _consumed(
    results: list[Mapping[str, Any]], pool: str, gpus: Mapping[str, _Known]
) -> tuple[Amounts, tuple[str, ...], dict[str, tuple[str, ...]]]:
    amounts: set[tuple[int, int]] = set()
    requests: dict[str, tuple[str, ...]] = {}
    uuids = []
    for number, result in enumerate(results):
        field, device = f"{_RESULTS}[{number}]", result["device"]
        if result.get("adminAccess"):
            raise BadRequest(f"{field}.adminAccess", "is not supported", hint="leave adminAccess out")
        if result.get("pool") != pool or device not in gpus:
            raise BadRequest(
                f"{field}.device", f"{result.get('pool')}/{device} is not a device of this node", hint="delete the pod"
            )
        if device in requests:
            raise BadRequest(
                f"{field}.device",
                f"{device} was allocated twice to one claim",
                hint=f"add the constraint distinctAttribute: {names.DRIVER}/uuid, or ask for more in one request",
            )
        consumed = result.get("consumedCapacity") or {}
        for name in ("memory", "compute"):
            if name not in consumed:
                raise BadRequest(
                    f"{field}.consumedCapacity.{name}",
                    "is missing",
                    hint="enable the feature gate DRAConsumableCapacity in the cluster (on since 1.36)",
                )
        uuid, most = gpus[device]
        memory = checked_memory(f"{field}.consumedCapacity.memory", consumed["memory"], most=most)
        amounts.add((memory, checked_percent(f"{field}.consumedCapacity.compute", consumed["compute"])))
        requests[device] = (result["request"],)
        uuids.append(uuid)
    if len(amounts) != 1:
        raise BadRequest(
            "spec.devices.requests",
            "ask for different amounts of different GPUs",
            hint="ask for the same memory and compute in each request, or make a claim for each container",
        )
    memory, compute = amounts.pop()
    return Amounts(memory=memory, compute=compute, limit=compute), tuple(uuids), requests


def name_in_pods(request: str) -> str:
    """Of a request with alternatives an allocation says REQUEST/ALTERNATIVE; a claim and containers say REQUEST."""
    return request.partition("/")[0]


def _configured(config: list[Mapping[str, Any]], results: list[Mapping[str, Any]], amounts: Amounts) -> Settings:
    # The apiserver puts those of the class before those of the claim: the last that speaks of a request counts.
    chosen: dict[str, Settings] = {}
    for number, entry in enumerate(config):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != names.DRIVER:
            continue
        field = f"{_CONFIG}[{number}].opaque.parameters"
        settings = from_parameters(opaque.get("parameters"), amounts.compute, amounts.memory, field=field)
        asked = entry.get("requests") or []
        for result in results:
            request = result["request"]
            if not asked or request in asked or name_in_pods(request) in asked:
                chosen[request] = settings
    plain = Settings(limit=amounts.compute)
    found = {chosen.get(result["request"], plain) for result in results}
    if len(found) != 1:
        raise BadRequest(_CONFIG, "differs between requests of one claim", hint="configure all requests alike")
    return found.pop()
