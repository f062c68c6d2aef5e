"""What each container of a pod asks for by annotations. Pure.

`gemlet.dev/memory` is of the pod's only container, or of the one that `gemlet.dev/container` names;
`NAME.gemlet.dev/memory` is of the container NAME, and takes the place of the other there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gemlet.config import suggest
from gemlet.kube import names
from gemlet.kube.request import Amounts, BadRequest, from_annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

Together = Literal["nvlink", "pcie", "numa"]
# What GPUs of one share have in common: the attribute of the ResourceSlices.
ATTRIBUTES: dict[Together, str] = {
    "nvlink": f"{names.DRIVER}/nvlink",
    "pcie": "resource.kubernetes.io/pcieRoot",
    "numa": f"{names.DRIVER}/numaNode",
}
MOST_GPUS = 32  # devices in one allocation
_OF_POD = f"{names.DRIVER}/"
_OF_CONTAINER = f".{names.DRIVER}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One container's share: ``amounts`` of each of ``gpus`` GPUs, which have ``together`` in common if it is set."""

    amounts: Amounts
    gpus: int = 1
    together: Together | None = None


class Annotations:
    """A pod's annotations by whom they are meant for. Each is read once: a pod may have thousands, and as many
    containers that are asked for one after the other."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._all = annotations
        self._of_pod = {name: value for name, value in annotations.items() if name.startswith(_OF_POD)}
        self.named: dict[str, dict[str, str]] = {}  # by container, of those that have some of their own
        for name, value in annotations.items():
            container, separator, key = name.partition(_OF_CONTAINER)
            if separator:
                self.named.setdefault(container, {})[f"{_OF_POD}{key}"] = value

    def of(self, container: str) -> dict[str, str]:
        """What is meant for one container, under the names that a pod's have."""
        is_meant = self._all.get(names.ANNOTATION_CONTAINER) in (None, container)
        return (self._of_pod if is_meant else {}) | self.named.get(container, {})


def for_container(annotations: Mapping[str, str], container: str) -> dict[str, str]:
    """As `Annotations.of`."""
    return Annotations(annotations).of(container)


def named(annotations: Mapping[str, str]) -> set[str]:
    """The containers that have annotations of their own."""
    return set(Annotations(annotations).named)


def asks(pod: Mapping[str, Any], *, most: int | None = None) -> dict[int, Ask]:
    """What containers ask for, by their number in the pod. ``most``: as in `checked_memory`. Raises BadRequest."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    containers = [container["name"] for container in (pod.get("spec") or {}).get("containers") or []]
    each = Annotations(annotations)
    for name in sorted(each.named.keys() - set(containers)):
        field = next(key for key in sorted(annotations) if key.startswith(f"{name}{_OF_CONTAINER}"))
        raise BadRequest(
            f"metadata.annotations[{field}]",
            f"is for container {name}, which the pod does not have",
            hint=suggest.hint(name, containers),
        )
    found = {}
    for number in _meant(annotations, set(each.named), containers):
        ask = _ask(each.of(containers[number]), most)
        if ask is not None:
            found[number] = ask
    return found


def _meant(annotations: Mapping[str, str], own: set[str], containers: list[str]) -> list[int]:
    name = annotations.get(names.ANNOTATION_CONTAINER)
    field = f"metadata.annotations[{names.ANNOTATION_CONTAINER}]"
    known = suggest.listed(containers)
    if name is not None:
        if name not in containers:
            raise BadRequest(field, f"names container {name}, which the pod does not have", hint=f"name one of {known}")
        own = own | {name}
    elif own:
        pass  # the pod's are for each of these
    elif len(containers) == 1:
        own = set(containers)
    elif names.ANNOTATION_MEMORY in annotations or names.ANNOTATION_COMPUTE in annotations:
        if not containers:
            raise BadRequest("spec.containers", "is empty", hint="write the container that is to have the share")
        raise BadRequest(
            field,
            f"is missing, with {len(containers)} containers",
            hint=f"name one of {known}, or give each its own: {containers[0]}.{names.ANNOTATION_MEMORY}",
        )
    else:
        from_annotations(annotations)  # which finds unknown ones
    return [number for number, container in enumerate(containers) if container in own]


def _ask(annotations: Mapping[str, str], most: int | None) -> Ask | None:
    amounts = from_annotations(annotations, most=most)
    if amounts is None:
        return None
    gpus, together = annotations.get(names.ANNOTATION_GPUS, "1"), annotations.get(names.ANNOTATION_TOGETHER)
    # Python takes no number of thousands of digits.
    if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 1000 and 1 <= int(gpus) <= MOST_GPUS):
        raise BadRequest(
            f"metadata.annotations[{names.ANNOTATION_GPUS}]",
            f"{gpus} is not a number of GPUs: expected 1 to {MOST_GPUS}",
            hint="write how many GPUs have a part in the share, such as 2",
        )
    if together is None:
        return Ask(amounts=amounts, gpus=int(gpus))
    for known in ATTRIBUTES:
        if together == known:
            return Ask(amounts=amounts, gpus=int(gpus), together=known)
    raise BadRequest(
        f"metadata.annotations[{names.ANNOTATION_TOGETHER}]",
        f"{together!r} is not something that GPUs have in common",
        hint=f"write one of {', '.join(ATTRIBUTES)}",
    )
