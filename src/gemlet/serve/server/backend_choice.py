"""What a server runs on: which backend, which devices, which profiles apply there."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from gemlet.devices import nvml
from gemlet.errors import DeviceError, UsageError
from gemlet.serve.execution.backends import BACKENDS
from gemlet.serve.execution.backends.modelled import profile_name
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.profile import limited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.execution.ray_placement import Cluster
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import Profiles

Wanted = Literal["auto", "green", "mps", "streams", "cpu", "modelled", "noop"]
EXECUTORS: tuple[Wanted, ...] = ("auto", "green", "mps", "streams", "cpu", "modelled", "noop")
ON_GPU = frozenset({"green", "mps", "streams"})


@dataclass(frozen=True, slots=True)
class Choice:
    """``why``: one line for the first lines of output, or "" where there is nothing to explain."""

    backend: str
    devices: tuple[int, ...]
    why: str = ""


def choose(wanted: Wanted, devices: Sequence[int] | None) -> Choice:
    """Raises UsageError if that cannot be had here."""
    there = gpus() if wanted in ON_GPU | {"auto"} else ()
    if wanted == "auto":
        if not there:
            why = "there is no GPU here: models run on the CPU, those of platform `modelled` take modelled time"
            return Choice("cpu", tuple(devices or (0,)), why)
        missing = _missing("green")
        if missing:
            return Choice("cpu", tuple(devices or (0,)), f"{missing}: models run on the CPU")
        return Choice("green", _of(there, devices))
    if wanted not in ON_GPU:
        return Choice(wanted, tuple(devices or (0,)))
    missing = _missing(wanted)
    if missing:
        raise UsageError(
            f"--executor {wanted}: {missing}", hint="choose --executor cpu or modelled, which run without a GPU"
        )
    if not there:
        hint = "choose --executor cpu or modelled, which run without one"
        raise UsageError(f"--executor {wanted} needs a GPU, and there is none here", hint=hint)
    return Choice(wanted, _of(there, devices))


def of_kinds(wanted: Wanted, counts: Sequence[tuple[Profiles, int]]) -> tuple[Choice, Known]:
    """So many devices of each kind: GPUs here that have the names of the profiles; elsewhere they count from 0.

    Raises UsageError if that cannot be had here.
    """
    chosen = choose(wanted, None)
    if chosen.backend not in ON_GPU:
        known = kinds.of_counts(counts)
        return replace(chosen, devices=tuple(range(sum(count for _, count in counts)))), known
    names = gpu_names()
    found: dict[int, str] = {}
    for profiles, count in counts:
        name = profiles.device.name
        alike = [index for index, here in enumerate(names) if here == name]
        if len(alike) < count:
            there = ", ".join(f"{n} {each}" for each, n in Counter(names).items())
            hint = f"there are {there} here: name their profiles, which `gemlet profile` measures"
            raise UsageError(f"{count} devices of the kind {name} are asked for, {len(alike)} are here", hint=hint)
        found |= dict.fromkeys(alike[:count], name)
    known = kinds.of_devices([profiles for profiles, _ in counts], found)
    return replace(chosen, devices=tuple(sorted(found))), known


def placed(wanted: Wanted, devices: Sequence[int] | None, cluster: Cluster) -> Choice:
    """As choose(), for executors on the machines of a Ray cluster. Raises UsageError."""
    if wanted == "mps":
        hint = "choose --executor green, which splits a device without MPS"
        raise UsageError(
            "leave out one of the two: --ray places one process for each device, and MPS needs one for each gpu-let",
            hint=hint,
        )
    backend = wanted
    if wanted == "auto":
        backend = "green" if cluster.gpus() else "cpu"
    count = cluster.places(backend)
    missing = [index for index in devices or () if index >= count]
    if missing:
        raise UsageError(
            f"there is no device {missing[0]} in the Ray cluster", hint=f"choose one of its {count}, counted from 0"
        )
    return Choice(backend, tuple(devices or range(count)), "Ray places the executors")


def gpus() -> tuple[int, ...]:
    """Indices of the GPUs of this machine; none where the driver does not answer."""
    return tuple(range(len(gpu_names())))


def gpu_names() -> tuple[str, ...]:
    """What the driver calls the GPUs of this machine, by index; none where it does not answer."""
    try:
        with nvml.session():
            return tuple(device.name for device in nvml.device_inventory())
    except DeviceError:
        return ()


def profiles_of(specs: Sequence[ModelSpec], known: Known | None, backend: str) -> Known | None:
    """The profiles by name of the model, as far as they say something about this backend; None if none does.

    On the CPU they are about modelled models only: what a model takes there nobody profiled.
    """
    return kinds.changed(known, lambda _, each: _of_one_kind(specs, each, backend)) if known is not None else None


def _of_one_kind(specs: Sequence[ModelSpec], known: Profiles, backend: str) -> Profiles | None:
    about = [spec for spec in specs if backend in ON_GPU | {"modelled"} or spec.platform == "modelled"]
    models = {
        spec.label: limited(known.models[profile_name(spec)], max(1, spec.max_batch))
        for spec in about
        if profile_name(spec) in known.models
    }
    return msgspec.structs.replace(known, models=models) if models else None


def _of(there: tuple[int, ...], devices: Sequence[int] | None) -> tuple[int, ...]:
    for index in devices or ():
        if index not in there:
            raise UsageError(f"there is no GPU {index} here", hint=f"choose among {', '.join(map(str, there))}")
    return tuple(devices) if devices else there


def _missing(backend: str) -> str:
    """What the backend lacks, or ""."""
    if importlib.util.find_spec(BACKENDS[backend]) is None:
        return f"this version has no backend {backend}"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install 'gemlet[torch]')"
    return ""
