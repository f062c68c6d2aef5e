"""What glet's JSON files say of a plan: sim-config.json of its scheduler; BackendList.json, Backend_docker.json.


The two are told apart by what is in them. What has no counterpart here is named in ``notes``.
"""

from __future__ import annotations

from math import gcd
from typing import Annotated, Any

import msgspec

from gemlet.decoding import convert, from_json
from gemlet.errors import ConfigError

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
MB_IN_MIB = 1e6 / 2**20


class _Gpus(msgspec.Struct, rename="pascal"):
    type: str
    num: Count


class _Scheduler(msgspec.Struct):
    gpus: list[_Gpus] = msgspec.field(name="GPUs", default_factory=list)
    max_models: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(name="Max Model", default=None)
    parts: bool | int | None = msgspec.field(name="Part", default=None)
    interference: bool | int | None = msgspec.field(name="Interference", default=None)
    self_tuning: bool | int | None = msgspec.field(name="Self Tuning", default=None)
    sizes: list[Percent] | None = msgspec.field(name="Avail_Parts", default=None)


class _Node(msgspec.Struct, rename={"gpus": "nGPUs", "memory": "gpu_mem_size_mb", "gpu": "gpu_name", "kind": "type"}):
    gpus: Count
    memory: Annotated[float, msgspec.Meta(gt=0)] | None = None
    gpu: str = ""
    kind: str = ""


class _Nodes(msgspec.Struct):
    nodes: list[_Node]


class GletConfig(msgspec.Struct, frozen=True, kw_only=True):
    """None: the file does not say. ``changes``: of PlanOptions; ``notes``: what is read otherwise, or not at all."""

    gpus: int | None = None
    memory_mib: float | None = None
    policy: str | None = None
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()


WITHOUT = {  # keys of the scheduler's file: what takes their place
    "Latency Ratio": "profiles are not multiplied; --quantile plans for bursts",
    "Incremental": "--previous changes a plan as little as possible",
    "SLO Ratio": "glet does not read it either",
    "No Check": "glet does not read it either",
}


def parse(text: str, path: str) -> GletConfig:
    """One of the files. Raises ConfigError."""
    try:
        table = from_json(text, dict[str, Any])
        if "nodes" in table:
            return _of_nodes(convert(table, _Nodes), path)
        if "GPUs" not in table:
            hint = "name sim-config.json, which has GPUs, or BackendList.json or Backend_docker.json, which have nodes"
            raise ConfigError("it is not one of glet's files for a scheduler or nodes", path=path, hint=hint)
        return _of_scheduler(convert(table, _Scheduler), table, path)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not in the form that glet writes: {error}", path=path) from None


def merged(configs: list[GletConfig]) -> GletConfig:
    """Of several files, what a later one says goes first."""
    whole = GletConfig()
    for each in configs:
        said = {name: value for name in ("gpus", "memory_mib", "policy") if (value := getattr(each, name)) is not None}
        more = {"changes": whole.changes | each.changes, "notes": whole.notes + each.notes}
        whole = msgspec.structs.replace(whole, **said, **more)
    return whole


def _of_scheduler(said: _Scheduler, table: dict[str, Any], path: str) -> GletConfig:
    changes: dict[str, Any] = {}
    notes = [f"{key} is ignored: {why}" for key, why in WITHOUT.items() if key in table]
    if said.max_models is not None:
        changes["max_models"] = said.max_models
    if said.interference is not None:
        changes["interference"] = bool(said.interference)
    if said.sizes:
        changes["grid"] = 100 // gcd(100, *said.sizes)
        notes.append(f"Avail_Parts: shares are multiples of {100 / changes['grid']:g}%, not only those listed")
    return GletConfig(
        gpus=_one_kind([(each.type, each.num) for each in said.gpus], path),
        policy=_policy(said),
        changes=changes,
        notes=tuple(notes),
    )


def _policy(said: _Scheduler) -> str | None:
    """That which glet would run."""
    if said.self_tuning:
        return "selftuning"
    if said.parts is None:
        return None
    if not said.parts:
        return "timeshare"
    return "gpulet" if said.interference else "gpulet-noint"


def _of_nodes(said: _Nodes, path: str) -> GletConfig:
    memory = min((node.memory for node in said.nodes if node.memory is not None), default=None)
    return GletConfig(
        gpus=_one_kind([(node.gpu or node.kind, node.gpus) for node in said.nodes], path),
        memory_mib=memory * MB_IN_MIB if memory is not None else None,
        notes=("addresses and sizes are ignored: `gemlet serve --ray` places executors on several machines",),
    )


def _one_kind(counts: list[tuple[str, int]], path: str) -> int:
    kinds = sorted({kind for kind, count in counts if count and kind})
    if len(kinds) > 1:
        hint = "leave this file out, and name the profiles of each kind, such as --gpus h200=2,h100.json=1"
        raise ConfigError(
            f"{' and '.join(kinds)}: the file does not say where their profiles are", path=path, hint=hint
        )
    return sum(count for _, count in counts)
