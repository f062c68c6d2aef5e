"""Checks a plan's promises anew from the profiles: for plans that were read from a file, and for tests.

It shares only the profiles and the formula of the slow-down with the policies' judgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.config.quantities import format_share
from gemlet.serve.plan.search import interference, linear
from gemlet.serve.profiles import kinds
from gemlet.serve.profiles.profile import delayed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.model import Gpu, Inventory, Plan, PlannedGpuLet, PlanOptions
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import ModelProfile, Profiles


def verify(plan: Plan, known: Known, inventory: Inventory, options: PlanOptions) -> list[str]:
    """One sentence for each broken promise; empty if the plan holds with the true neighbours' interference."""
    wrong = []
    if len(plan.gpus) > inventory.gpus:
        wrong.append(f"{len(plan.gpus)} GPUs are used, there are {inventory.gpus}")
    if len({gpu.index for gpu in plan.gpus}) < len(plan.gpus):
        wrong.append("two GPUs have the same number")
    for gpu in plan.gpus:
        profiles = kinds.on(known, gpu.index)
        strange = sorted({t.model for gpu_let in gpu.gpu_lets for t in gpu_let.tasks} - profiles.models.keys())
        if strange or gpu.device != kinds.kind_of(known, gpu.index):
            wrong.append(f"GPU {gpu.index} is not planned for what it is, {profiles.device.name}: {', '.join(strange)}")
            continue
        wrong += _broken(gpu, delayed(profiles, options.hop_ms) if options.hop_ms else profiles, inventory, options)
    return wrong + _unserved(plan)


def _broken(gpu: Gpu, profiles: Profiles, inventory: Inventory, options: PlanOptions) -> list[str]:
    wrong = []
    usable = (inventory.memory_mib or profiles.device.memory_mib) * options.usable_memory
    if gpu.sm > 1.0 + 1e-4:
        wrong.append(f"GPU {gpu.index}: shares sum to {format_share(gpu.sm)}")
    if _memory(gpu, profiles, options) > usable + 0.1:
        wrong.append(f"GPU {gpu.index}: {_memory(gpu, profiles, options):.0f} MiB of {usable:.0f} are needed")
    return wrong + _late(gpu, profiles, options)


def _memory(gpu: Gpu, profiles: Profiles, options: PlanOptions) -> float:
    tasks = [task for gpu_let in gpu.gpu_lets for task in gpu_let.tasks]
    mps = options.executor == "mps"
    loaded = [task.model for task in tasks] if mps else list({task.model for task in tasks})
    return (
        profiles.device.context_mib * (len(gpu.gpu_lets) if mps else 1)
        + sum(profiles.models[model].weights_mib for model in loaded)
        + sum(profiles.models[task.model].activation_mib * task.batch for task in tasks)
    )


def _late(gpu: Gpu, profiles: Profiles, options: PlanOptions) -> list[str]:
    wrong = _pools_late(gpu, profiles, options)
    contentions = [
        interference.contention(profiles, gpu_let.sm, [task.model for task in gpu_let.tasks])
        for gpu_let in gpu.gpu_lets
    ]
    for number, gpu_let in enumerate(gpu.gpu_lets):
        if gpu_let.pool:
            continue
        neighbours = contentions[:number] + contentions[number + 1 :] if options.interference else []
        beside = [(each.sm, [task.model for task in each.tasks]) for each in gpu.gpu_lets if each is not gpu_let]
        latencies = []
        for task in gpu_let.tasks:
            profile = profiles.models[task.model]
            slowdown = interference.slowdown_beside(profile.sensitivity, neighbours, gpu.sm - 1) if neighbours else 1.0
            if neighbours and options.linear is not None:
                slowdown = linear.slowdown(options.linear, profiles, task.model, beside)
            latencies.append(profile.surface.latency(gpu_let.sm, task.batch) * slowdown)
        where = f"GPU {gpu.index}, gpu-let of {format_share(gpu_let.sm)}"
        if sum(latencies) > gpu_let.duty_ms * 1.0001 + 1e-5:
            wrong.append(f"{where}: turns of {sum(latencies):.3g} ms in a cycle of {gpu_let.duty_ms:.3g} ms")
        for task, latency in zip(gpu_let.tasks, latencies, strict=True):
            if gpu_let.duty_ms + latency > task.slo_ms * 1.0001 + 1e-5:
                wrong.append(f"{where}: {task.model} may take {gpu_let.duty_ms + latency:.3g} of {task.slo_ms:g} ms")
            if task.rate > 1000 * task.batch / gpu_let.duty_ms * 1.0001 + 1e-5:
                wrong.append(f"{where}: {task.model} gets {task.rate:.4g} requests/s, more than {task.batch} a cycle")
    return wrong


def _pools_late(gpu: Gpu, profiles: Profiles, options: PlanOptions) -> list[str]:
    """What the pools of a device do not hold: see pool.py."""
    pools: dict[tuple[bool, object], list[PlannedGpuLet]] = {}
    for number, gpu_let in enumerate(gpu.gpu_lets):
        key = tuple(sorted(task.model for task in gpu_let.tasks)) if gpu_let.pool else number
        pools.setdefault((gpu_let.pool, key), []).append(gpu_let)
    contentions = [
        (gpu_let, _mean_contention(gpu_lets, gpu_let, profiles)) for gpu_lets in pools.values() for gpu_let in gpu_lets
    ]
    wrong = []
    for (pool, _), gpu_lets in pools.items():
        if not pool:
            continue
        least = min(gpu_lets, key=lambda gpu_let: gpu_let.sm)
        others = (
            [contention for gpu_let, contention in contentions if gpu_let is not least] if options.interference else []
        )
        busy = 0.0
        for task in least.tasks:
            profile = profiles.models[task.model]
            slowdown = interference.slowdown_beside(profile.sensitivity, others, gpu.sm - 1)
            rate = sum(each.rate for gpu_let in gpu_lets for each in gpu_let.tasks if each.model == task.model) / 1000
            if rate <= 0:
                continue
            slow = [slowdown * profile.surface.latency(least.sm, b) for b in range(1, profile.surface.max_batch + 1)]
            fitting = [min(b / rate, task.slo_ms - ms) for b, ms in enumerate(slow, 1) if ms < task.slo_ms]
            if not fitting:
                wrong.append(
                    f"GPU {gpu.index}, pool: {task.model} takes {slow[0]:.3g} of {task.slo_ms:g} ms at batch 1 already"
                )
                continue
            every = max(fitting)
            come = rate * every
            busy += min(1.0, come) * slowdown * _mean_time(profile, gpu_lets, max(1.0, come)) / every
        if busy > len(gpu_lets) * 1.001:
            names = ", ".join(task.model for task in least.tasks)
            wrong.append(
                f"GPU {gpu.index}, pool of {names}: {busy:.4g} gpu-lets would be busy, there are {len(gpu_lets)}"
            )
    return wrong


def _mean_contention(
    gpu_lets: Sequence[PlannedGpuLet], gpu_let: PlannedGpuLet, profiles: Profiles
) -> interference.Contention:
    times = {}
    least = min(each.sm for each in gpu_lets)
    for task in gpu_let.tasks:
        profile = profiles.models[task.model]
        row = [profile.surface.latency(least, b) for b in range(1, profile.surface.max_batch + 1)]
        fitting = [(b / ms, b) for b, ms in enumerate(row, 1) if 2 * ms <= task.slo_ms + 1e-9]
        batch = max(fitting)[1] if fitting else 1
        rate = sum(each.rate for other in gpu_lets for each in other.tasks if each.model == task.model)
        times[task.model] = rate * _mean_time(profile, gpu_lets, batch) / batch
    whole = sum(times.values()) or 1.0  # without requests there is no contention
    return interference.mean_contention(profiles, gpu_let.sm, {model: time / whole for model, time in times.items()})


def _mean_time(profile: ModelProfile, gpu_lets: Sequence[PlannedGpuLet], batch: float) -> float:
    low = int(batch + 1e-9)  # what comes while the largest batch fills may be rounded to more than it
    high = low + (batch > low + 1e-9)
    steps = [
        len(gpu_lets) / sum(1 / profile.surface.latency(gpu_let.sm, b) for gpu_let in gpu_lets) for b in (low, high)
    ]
    return steps[0] + (batch - low) * (steps[1] - steps[0])


def _unserved(plan: Plan) -> list[str]:
    rates: dict[str, float] = {}
    for task in plan.tasks():
        rates[task.model] = rates.get(task.model, 0.0) + task.rate
    return [
        f"{demand.model}: {rates.get(demand.model, 0.0):.6g} of {demand.rate:.6g} requests/s are placed"
        for demand in plan.demands
        if rates.get(demand.model, 0.0) < demand.rate * 0.9999
    ]
