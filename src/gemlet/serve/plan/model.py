"""What goes into a planner and what comes out: plain data, in JSON too."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = 1
Executor = Literal["green", "mps"]


class Demand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model to serve. ``rate`` in requests/s; ``variation`` of the gaps between them, 1 for Poisson."""

    model: str
    rate: float
    slo_ms: float
    variation: float = 1.0


class Inventory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices. ``memory_mib`` None takes the profile's figure. kinds: of each device; (): that of the profiles."""

    gpus: int
    memory_mib: float | None = None
    kinds: tuple[str, ...] = ()


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """glet's model of interference, search/linear.py: ``own`` coefficients of the model that is slowed down, the others
    of its neighbour."""

    l2_own: float
    l2: float
    dram_own: float
    dram: float
    constant: float


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to plan.

    grid: shares are multiples of 1/grid; 0 takes what the device can split. quantile: plan for this quantile of the
    requests that come in a second, given rate and variation; 0.5 plans for the rate itself. executor: one process for a
    whole device that holds a model's weights once (green contexts), or one process a gpu-let (MPS). max_models: at most
    so many models take turns on one gpu-let; pool_models: at most so many are served by a pool of gpu-lets, 0 for none.
    interference: count on neighbours slowing each other down. blind: to the workload types, so that every neighbour may
    be the worst of the demanded models; policy nway sets it. linear: glet's model of interference in the place of
    gemlet's, for policies of one or two gpu-lets a device; None: gemlet's. usable_memory: the part of a device's memory
    that a plan may fill. hop_ms: what a batch takes beside its profile, to the executor's process and back.
    """

    grid: int = 0
    quantile: float = 0.99
    executor: Executor = "green"
    max_models: int = 3
    pool_models: int = 8
    interference: bool = True
    blind: bool = False
    linear: Linear | None = None
    usable_memory: float = 0.9
    hop_ms: float = 0.0
    effort: int = 8_000  # work spent on local search, in judgements of a gpu-let; eight thousand take some 50 ms


class Task(msgspec.Struct, frozen=True, kw_only=True, rename={"slowdown": "alpha"}):
    """One model on one gpu-let.

    rate: requests/s routed here; capacity: what it could take here. latency_ms: of one planned batch, neighbours
    included; worst_ms: of a request that just missed a batch; it is within slo_ms. slowdown: by the neighbours, 1 for
    none; documents call it alpha.
    """

    model: str
    rate: float
    capacity: float
    batch: int
    latency_ms: float
    worst_ms: float
    slo_ms: float
    slowdown: float


class PlannedGpuLet(msgspec.Struct, frozen=True, kw_only=True):
    """A gpu-let: a share of one device's SMs. ``duty_ms``: every task has its turn once in this time.

    pool: those of a device that are marked so and serve the same models work as one: a task has its turn on any.
    """

    sm: float
    duty_ms: float
    occupancy: float
    tasks: tuple[Task, ...]
    why: tuple[str, ...] = ()
    pool: bool = False


class Gpu(msgspec.Struct, frozen=True, kw_only=True, rename={"gpu_lets": "lets"}, omit_defaults=True):
    """One device of a plan; documents call its gpu-lets lets. device: its kind, in plans of several kinds."""

    index: int
    memory_mib: float
    gpu_lets: tuple[PlannedGpuLet, ...]
    device: str = ""

    @property
    def sm(self) -> float:
        """Sum of the shares."""
        return sum(gpu_let.sm for gpu_let in self.gpu_lets)


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag="plan", tag_field="result"):
    """Models on gpu-lets. ``origin`` is that of the profiles: a plan of modelled profiles is a modelled plan.

    made_for: of a plan that was kept, the demands when its gpu-lets were chosen; empty where that is ``demands``.
    """

    policy: str
    device: str
    origin: str
    gpus: tuple[Gpu, ...]
    demands: tuple[Demand, ...]
    notes: tuple[str, ...] = ()
    kept: bool = False
    made_for: tuple[Demand, ...] = ()
    schema: int = SCHEMA

    def tasks(self) -> list[Task]:
        return [task for gpu in self.gpus for gpu_let in gpu.gpu_lets for task in gpu_let.tasks]


class Infeasible(msgspec.Struct, frozen=True, kw_only=True, tag="infeasible", tag_field="result"):
    """No plan. ``why`` has one sentence for each reason; ``needed``: GPUs that would do, where that is known."""

    policy: str
    why: tuple[str, ...]
    needed: int | None = None
    schema: int = SCHEMA
