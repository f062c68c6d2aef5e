"""Pods that ask by units, in a cluster whose GPUs are offered by claims. Pure.

Units count a node's GPUs together, so that a pod may come to a node where no single GPU has what it asks for. As a
claim the same pod is placed on one GPU or waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet.kube import names
from gemlet.kube.ask import Annotations
from gemlet.kube.quantity import format_bytes, parse_quantity
from gemlet.kube.units import MEMORY_UNIT

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = (names.COMPUTE_RESOURCE, names.MEMORY_RESOURCE)
KINDS = ("limits", "requests")


def by_annotations(pod: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """``pod`` with annotations for the units of its containers, and the JSON patch that makes it so.

    The units have been checked. Annotations of amounts that a container has already count.
    """
    containers = list((pod.get("spec") or {}).get("containers") or [])
    annotations = dict((pod.get("metadata") or {}).get("annotations") or {})
    each = Annotations(dict(annotations))
    operations = []
    for number, container in enumerate(containers):
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        if not all(name in limits for name in UNITS):
            continue
        said = each.of(container["name"])
        if not {names.ANNOTATION_MEMORY, names.ANNOTATION_COMPUTE} & said.keys():
            compute, memory = (int(parse_quantity(str(limits[name]))) for name in UNITS)
            annotations[f"{container['name']}.{names.ANNOTATION_COMPUTE}"] = str(compute)
            annotations[f"{container['name']}.{names.ANNOTATION_MEMORY}"] = format_bytes(memory * MEMORY_UNIT)
        kept = {kind: {k: v for k, v in (resources.get(kind) or {}).items() if k not in UNITS} for kind in KINDS}
        containers[number] = {**container, "resources": {**resources, **kept}}
        path = f"/spec/containers/{number}/resources"
        operations.append({"op": "add", "path": path, "value": containers[number]["resources"]})
    if not operations:
        return pod, []
    operations.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
    metadata = {**(pod.get("metadata") or {}), "annotations": annotations}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "containers": containers}}, operations
