"""What a pod may ask for, and the refusal of anything else. Pure.

Amounts come from annotations, from claims and from the configuration of a claim; the rules are the same and are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.config import suggest
from gemlet.config.quantities import MIB
from gemlet.decoding import convert
from gemlet.errors import GemletError, InvalidValue
from gemlet.kube import names
from gemlet.kube.quantity import format_bytes, parse_bytes, parse_percent
from gemlet.model import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_MEMORY = 256 * MIB  # less is not enough for a CUDA context
_PREFIX = "gemlet.dev/"
_NO_SM = "is not supported for pods: it needs MPS, under which a fault of one program ends those of other pods"
_NO_SM_HINT = "leave it out: shares of time and memory do not need it"


class BadRequest(GemletError):
    """A pod or a claim asks for what cannot be given. ``field`` names the place, the hint says what to do."""

    def __init__(self, field: str, message: str, *, hint: str) -> None:
        super().__init__(f"{field}: {message}", hint=hint)
        self.field = field

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"  # events and admission messages are one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A share: bytes of memory, percent of time guaranteed and at most, class.

    resident: bytes of the memory that are on the GPU at a time, None for all; the rest is on the host (docs/memory.md).
    """

    memory: int
    compute: int
    limit: int
    priority: Priority = Priority.NORMAL
    resident: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a claim's opaque parameters add to its capacity; as in `Amounts`."""

    limit: int
    priority: Priority = Priority.NORMAL
    resident: int | None = None


class ShareConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The opaque parameters of a claim. ``compute_limit``: None for the guaranteed share, so that it is exact.

    resident: a quantity, as in `Amounts`. sm: known so that its refusal can say why.
    """

    api_version: str
    kind: str
    compute_limit: int | None = None
    priority: Priority = Priority.NORMAL
    resident: str | None = None
    sm: int = 100


def checked_memory(field: str, text: str, *, most: int | None = None) -> int:
    """Bytes. ``most``: of the largest GPU, None if that is not known. Raises BadRequest."""
    try:
        size = parse_bytes(text)
    except InvalidValue as error:
        raise BadRequest(field, error.message, hint=error.hint or "") from None
    if size < MIN_MEMORY:
        raise BadRequest(
            field, f"{text} is less than a CUDA context takes", hint=f"ask for {format_bytes(MIN_MEMORY)} or more"
        )
    if most is not None and size > most:
        raise BadRequest(field, f"{text} is more than a GPU has", hint=f"ask for {format_bytes(most)} or less")
    return size


def checked_percent(field: str, text: str) -> int:
    """1 to 100. Raises BadRequest."""
    try:
        percent = parse_percent(text)
    except InvalidValue as error:
        raise BadRequest(field, error.message, hint=error.hint or "") from None
    if not 1 <= percent <= 100:
        raise BadRequest(field, f"{text} is not from 1 to 100", hint="write percent of one GPU's time, such as 25")
    return percent


def checked_limit(field: str, limit: int, compute: int) -> int:
    """The most a share may use. Raises BadRequest below its guarantee."""
    if not compute <= limit <= 100:
        raise BadRequest(
            field,
            f"{limit} is not valid: expected {compute}, which is guaranteed, to 100",
            hint=f"leave it out for exactly {compute}, or write 100 for whatever is free",
        )
    return limit


def checked_resident(field: str, text: str, memory: int) -> int:
    """Bytes of ``memory`` that are on the GPU at a time. Raises BadRequest."""
    resident = checked_memory(field, text)
    if resident >= memory:
        raise BadRequest(
            field,
            f"{text} is not valid: expected less than the share's memory of {format_bytes(memory)}",
            hint="leave it out: then all of the memory is on the GPU",
        )
    return resident


def from_annotations(annotations: Mapping[str, str], *, most: int | None = None) -> Amounts | None:
    """The share that a pod asks for by annotations, None if by none. Raises BadRequest."""
    asked = {name: value for name, value in annotations.items() if name.startswith(_PREFIX)}
    for name in asked:
        if name == names.ANNOTATION_SM:
            raise BadRequest(_at(name), _NO_SM, hint=_NO_SM_HINT)
        if name not in names.ANNOTATIONS:
            hint = suggest.hint(name, names.ANNOTATIONS)
            raise BadRequest(_at(name), "is not an annotation of gemlet", hint=hint)
    if names.ANNOTATION_MEMORY not in asked and names.ANNOTATION_COMPUTE not in asked:
        return None
    for needed, example in ((names.ANNOTATION_MEMORY, "16Gi"), (names.ANNOTATION_COMPUTE, '"25"')):
        if needed not in asked:
            raise BadRequest(
                f"metadata.annotations[{needed}]", "is missing", hint=f"add {needed}: {example}; a share has both"
            )
    compute = checked_percent(_at(names.ANNOTATION_COMPUTE), asked[names.ANNOTATION_COMPUTE])
    memory = checked_memory(_at(names.ANNOTATION_MEMORY), asked[names.ANNOTATION_MEMORY], most=most)
    return Amounts(
        memory=memory,
        compute=compute,
        limit=limit_annotation(asked, compute) or compute,
        priority=priority_annotation(asked) or Priority.NORMAL,
        resident=resident_annotation(asked, memory),
    )


def limit_annotation(annotations: Mapping[str, str], compute: int) -> int | None:
    """gemlet.dev/compute-limit, None where it is not given. Raises BadRequest."""
    text = annotations.get(names.ANNOTATION_LIMIT)
    if text is None:
        return None
    field = _at(names.ANNOTATION_LIMIT)
    return checked_limit(field, checked_percent(field, text), compute)


def priority_annotation(annotations: Mapping[str, str]) -> Priority | None:
    """gemlet.dev/priority, None where it is not given. Raises BadRequest."""
    text = annotations.get(names.ANNOTATION_PRIORITY)
    if text is None:
        return None
    if text not in tuple(Priority):
        raise BadRequest(
            _at(names.ANNOTATION_PRIORITY), f"{text!r} is not a valid class", hint=f"write one of {', '.join(Priority)}"
        )
    return Priority(text)


def resident_annotation(annotations: Mapping[str, str], memory: int) -> int | None:
    """gemlet.dev/resident of a share with ``memory``, None where it is not given. Raises BadRequest."""
    text = annotations.get(names.ANNOTATION_RESIDENT)
    return None if text is None else checked_resident(_at(names.ANNOTATION_RESIDENT), text, memory)


def in_force(granted: Amounts, annotations: Mapping[str, str]) -> Amounts:
    """What is in force for a share of which ``granted`` is counted, with the annotations its pod has now.

    Memory and guaranteed time can be less than granted, never more: the scheduler has given the rest to others. The
    limit of time is free above the guarantee; but not where nothing is granted, as to a claim that has other GPUs now.
    Raises BadRequest.
    """
    if not granted.compute:
        return granted
    memory, compute, limit = granted.memory, granted.compute, granted.limit
    if names.ANNOTATION_MEMORY in annotations:
        memory = checked_memory(_at(names.ANNOTATION_MEMORY), annotations[names.ANNOTATION_MEMORY])
        if memory > granted.memory:
            raise BadRequest(
                _at(names.ANNOTATION_MEMORY),
                f"{annotations[names.ANNOTATION_MEMORY]} is more than its {format_bytes(granted.memory)}",
                hint="ask for more when the pod is made: a running share can be made smaller, not larger",
            )
    if names.ANNOTATION_COMPUTE in annotations:
        compute = limit = checked_percent(_at(names.ANNOTATION_COMPUTE), annotations[names.ANNOTATION_COMPUTE])
        if compute > granted.compute:
            raise BadRequest(
                _at(names.ANNOTATION_COMPUTE),
                f"{compute} is more than its {granted.compute}",
                hint=f"raise {names.ANNOTATION_LIMIT} instead: it lets the pod use what others leave",
            )
    return Amounts(
        memory=memory,
        compute=compute,
        limit=limit_annotation(annotations, compute) or max(limit, compute),
        priority=priority_annotation(annotations) or granted.priority,
        resident=resident_annotation(annotations, memory) or granted.resident,
    )


def from_parameters(parameters: Any, compute: int, memory: int, *, field: str) -> Settings:
    """What a claim's opaque parameters say for a share of ``compute`` and ``memory``. Raises BadRequest."""
    try:
        config = convert(parameters, ShareConfig)
    except msgspec.ValidationError as error:
        known = "apiVersion, kind, computeLimit, priority, resident"
        raise BadRequest(field, str(error), hint=f"choose from the fields of a {names.CONFIG_KIND}: {known}") from None
    if (config.api_version, config.kind) != (names.CONFIG_API_VERSION, names.CONFIG_KIND):
        raise BadRequest(
            field,
            f"{config.api_version} {config.kind} is not known",
            hint=f"write apiVersion: {names.CONFIG_API_VERSION}, kind: {names.CONFIG_KIND}",
        )
    if config.sm != 100:
        raise BadRequest(f"{field}.sm", _NO_SM, hint=_NO_SM_HINT)
    limit, resident = compute, None
    if config.compute_limit is not None:
        limit = checked_limit(f"{field}.computeLimit", config.compute_limit, compute)
    if config.resident is not None:
        resident = checked_resident(f"{field}.resident", config.resident, memory)
    return Settings(limit=limit, priority=config.priority, resident=resident)


def _at(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"
