"""Pods that were written for other ways of sharing GPUs, in the words of gemlet. Pure.

HAMi's resources (`nvidia.com/gpu` with `gpumem`, `gpumem-percentage`, `gpucores`, `priority`), KAI's and Run:ai's
annotations (`gpu-fraction`, `gpu-memory`) and a plain `nvidia.com/gpu` become annotations of gemlet, which admission
then treats as if the user had written them. Only in namespaces that ask for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemlet.config import suggest
from gemlet.config.quantities import MIB
from gemlet.errors import InvalidValue
from gemlet.kube import names
from gemlet.kube.admission import MOST_CONTAINERS
from gemlet.kube.ask import named
from gemlet.kube.quantity import format_bytes, parse_quantity
from gemlet.kube.request import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GPU = "nvidia.com/gpu"
HAMI_MEMORY = "nvidia.com/gpumem"  # MiB
HAMI_MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
HAMI_CORES = "nvidia.com/gpucores"  # percent of the time, and at most
HAMI_PRIORITY = "nvidia.com/priority"  # 0 high, 1 low
RESOURCES = (GPU, HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES, HAMI_PRIORITY)
KAI_FRACTION = "gpu-fraction"  # of memory, and of time as it comes
KAI_MEMORY = "gpu-memory"  # MiB
KAI_DEVICES = "gpu-fraction-num-devices"
KAI_CONTAINER = "gpu-fraction-container-name"
KAI = (KAI_FRACTION, KAI_MEMORY, KAI_DEVICES, KAI_CONTAINER)
SCHEDULERS = ("hami-scheduler", "kai-scheduler", "runai-scheduler")  # which know nothing of gemlet's claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What is not said in a pod. ``gpu_memory``: bytes of the largest GPU, None where that is not known. ``compute``
    and ``memory``: percent and bytes of a share for a plain `nvidia.com/gpu`, None for the whole of it."""

    gpu_memory: int | None = None
    compute: int | None = None
    memory: int | None = None


def translate(pod: Mapping[str, Any], defaults: Defaults) -> list[dict[str, Any]]:
    """The JSON patch that says the same in gemlet's annotations, [] for nothing to say. Raises BadRequest."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations = dict(meta.get("annotations") or {})
    containers = list(spec.get("containers") or [])
    if len(containers) > MOST_CONTAINERS:
        raise BadRequest("spec.containers", f"{len(containers)} are too many", hint="make several pods of it")
    own = named(annotations) | _meant(annotations, containers)
    added: dict[str, str] = {}
    operations: list[dict[str, Any]] = []
    kai = _kai_container(annotations, containers)
    for number, container in enumerate(containers):
        name = container["name"]
        limits = {**_amounts(container, "requests"), **_amounts(container, "limits")}
        if name in own:
            said = None  # gemlet's own words count
        elif kai == name:
            said = _from_kai(annotations, defaults)
        else:
            said = _from_resources(number, limits, defaults)
        if said is None:
            continue
        added |= {f"{name}.{key}": value for key, value in said.items()}
        operations += _without(number, container)
    if not added:
        return []
    kept = {key: value for key, value in annotations.items() if key not in KAI}
    operations.append({"op": "add", "path": "/metadata/annotations", "value": {**kept, **added}})
    if spec.get("schedulerName") in SCHEDULERS:
        operations.append({"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"})
    return operations


def _meant(annotations: Mapping[str, str], containers: list[Mapping[str, Any]]) -> set[str]:
    """The containers for which the pod's annotations of gemlet's own name an amount."""
    if annotations.keys().isdisjoint((names.ANNOTATION_MEMORY, names.ANNOTATION_COMPUTE)):
        return set()
    only = annotations.get(names.ANNOTATION_CONTAINER)
    return {container["name"] for container in containers} if only is None else {only}


def _from_resources(number: int, limits: Mapping[str, str], defaults: Defaults) -> dict[str, str] | None:
    if not any(name in limits for name in RESOURCES[:-1]):
        return None
    where = f"spec.containers[{number}].resources.limits"
    given = {name: _number(f"{where}[{name}]", limits[name]) for name in RESOURCES if name in limits}
    gpus = given.get(GPU, 1)
    if gpus < 1:
        return None
    plain = not any(name in given for name in (HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES))
    said = {}
    if HAMI_MEMORY in given:
        memory = given[HAMI_MEMORY] * MIB
    elif HAMI_MEMORY_PERCENT in given:
        memory = _part(f"{where}[{HAMI_MEMORY_PERCENT}]", given[HAMI_MEMORY_PERCENT] / 100, defaults)
    elif plain and defaults.memory is not None:
        memory = defaults.memory
    else:
        memory = _part(where, 1.0, defaults)
    if plain:
        said[names.ANNOTATION_COMPUTE] = str(defaults.compute or 100)
    elif given.get(HAMI_CORES):
        said[names.ANNOTATION_COMPUTE] = str(given[HAMI_CORES])
    else:  # as much as there is, and nothing for sure
        said |= {names.ANNOTATION_COMPUTE: "1", names.ANNOTATION_LIMIT: "100"}
    if HAMI_PRIORITY in given:
        said[names.ANNOTATION_PRIORITY] = "best-effort" if given[HAMI_PRIORITY] else "latency"
    if gpus > 1:
        said[names.ANNOTATION_GPUS] = str(gpus)
    return {names.ANNOTATION_MEMORY: format_bytes(memory), **said}


def _kai_container(annotations: Mapping[str, str], containers: list[Mapping[str, Any]]) -> str | None:
    if not containers or not {KAI_FRACTION, KAI_MEMORY} & annotations.keys():
        return None
    name = annotations.get(KAI_CONTAINER, containers[0]["name"])
    known = [container["name"] for container in containers]
    if name not in known:
        raise BadRequest(
            f"metadata.annotations[{KAI_CONTAINER}]",
            f"names container {name}, which the pod does not have",
            hint=f"name one of {suggest.listed(known)}",
        )
    return str(name)


def _from_kai(annotations: Mapping[str, str], defaults: Defaults) -> dict[str, str]:
    if KAI_FRACTION in annotations:
        field = f"metadata.annotations[{KAI_FRACTION}]"
        try:
            fraction = float(annotations[KAI_FRACTION])
        except ValueError:
            fraction = math.nan
        if not 0 < fraction <= 1:
            raise BadRequest(
                field, f"{annotations[KAI_FRACTION]} is not above 0 and at most 1", hint='write a part, such as "0.5"'
            )
        memory = _part(field, fraction, defaults)
    else:
        field = f"metadata.annotations[{KAI_MEMORY}]"
        memory = _number(field, annotations[KAI_MEMORY]) * MIB
        fraction = memory / _part(field, 1.0, defaults)
    said = {
        names.ANNOTATION_MEMORY: format_bytes(memory),
        names.ANNOTATION_COMPUTE: str(min(100, max(1, round(100 * fraction)))),
        names.ANNOTATION_LIMIT: "100",  # KAI counts parts, and holds nobody to theirs
    }
    if KAI_DEVICES in annotations:
        said[names.ANNOTATION_GPUS] = annotations[KAI_DEVICES]
    return said


def _part(field: str, part: float, defaults: Defaults) -> int:
    if defaults.gpu_memory is None:
        raise BadRequest(
            field,
            "is a part of a GPU's memory, and its size is not known here",
            hint="give the chart gpuMemory, or ask for an amount",
        )
    return int(defaults.gpu_memory * part) // MIB * MIB


def _number(field: str, text: str) -> int:
    try:
        return int(parse_quantity(text))
    except InvalidValue as error:
        raise BadRequest(field, error.message, hint="write a whole number") from None


def _amounts(container: Mapping[str, Any], kind: str) -> dict[str, str]:
    return {name: str(value) for name, value in ((container.get("resources") or {}).get(kind) or {}).items()}


def _without(number: int, container: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    resources = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        if kind in resources:
            resources[kind] = {key: value for key, value in resources[kind].items() if key not in RESOURCES}
    if resources != (container.get("resources") or {}):
        yield {"op": "add", "path": f"/spec/containers/{number}/resources", "value": resources}
