"""What a plan promises, checked anew from the profiles: for plans that were read from a file, and for tests.

Shares nothing with the policies' judgement but the profiles and the formula of the slow-down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.planner import interference

if TYPE_CHECKING:
    from gemlet.serve.planner.model import Gpu, Inventory, Options, Plan
    from gemlet.serve.profiles import Profiles


def verify(plan: Plan, profiles: Profiles, inventory: Inventory, options: Options) -> list[str]:
    """One sentence for each broken promise; empty if the plan holds with the true neighbours' interference."""
    wrong = []
    if len(plan.gpus) > inventory.gpus:
        wrong.append(f"{len(plan.gpus)} GPUs are used, there are {inventory.gpus}")
    if len({gpu.index for gpu in plan.gpus}) < len(plan.gpus):
        wrong.append("two GPUs have the same number")
    limit = options.oversubscription if options.types == "oversubscribe" else 1.0
    usable = (inventory.memory_mib or profiles.device.memory_mib) * options.usable_memory
    for gpu in plan.gpus:
        if gpu.sm > limit + 1e-4:
            wrong.append(f"GPU {gpu.index}: shares sum to {gpu.sm:.1%}")
        if _memory(gpu, profiles, options) > usable + 0.1:
            wrong.append(f"GPU {gpu.index}: {_memory(gpu, profiles, options):.0f} MiB of {usable:.0f} are needed")
        wrong += _late(gpu, profiles, options)
    return wrong + _unserved(plan)


def _memory(gpu: Gpu, profiles: Profiles, options: Options) -> float:
    tasks = [task for let in gpu.lets for task in let.tasks]
    mps = options.executor == "mps"
    loaded = [task.model for task in tasks] if mps else list({task.model for task in tasks})
    return (
        profiles.device.context_mib * (len(gpu.lets) if mps else 1)
        + sum(profiles.models[model].weights_mib for model in loaded)
        + sum(profiles.models[task.model].activation_mib * task.batch for task in tasks)
    )


def _late(gpu: Gpu, profiles: Profiles, options: Options) -> list[str]:
    wrong = []
    presses = [interference.press(profiles, let.sm, [task.model for task in let.tasks]) for let in gpu.lets]
    for number, let in enumerate(gpu.lets):
        neighbours = presses[:number] + presses[number + 1 :] if options.interference else []
        latencies = []
        for task in let.tasks:
            profile = profiles.models[task.model]
            alpha = interference.slow_down(profile.sensitivity, neighbours, gpu.sm - 1) if neighbours else 1.0
            latencies.append(profile.surface.latency(let.sm, task.batch) * alpha)
        where = f"GPU {gpu.index}, gpu-let of {let.sm:.1%}"
        if sum(latencies) > let.duty_ms * 1.0001 + 1e-5:
            wrong.append(f"{where}: turns of {sum(latencies):.3g} ms in a cycle of {let.duty_ms:.3g} ms")
        for task, latency in zip(let.tasks, latencies, strict=True):
            if let.duty_ms + latency > task.slo_ms * 1.0001 + 1e-5:
                wrong.append(f"{where}: {task.model} may take {let.duty_ms + latency:.3g} of {task.slo_ms:g} ms")
            if task.rate > 1000 * task.batch / let.duty_ms * 1.0001 + 1e-5:
                wrong.append(f"{where}: {task.model} gets {task.rate:.4g} requests/s, more than {task.batch} a cycle")
    return wrong


def _unserved(plan: Plan) -> list[str]:
    rates: dict[str, float] = {}
    for task in plan.tasks():
        rates[task.model] = rates.get(task.model, 0.0) + task.rate
    return [
        f"{demand.model}: {rates.get(demand.model, 0.0):.6g} of {demand.rate:.6g} requests/s are placed"
        for demand in plan.demands
        if rates.get(demand.model, 0.0) < demand.rate * 0.9999
    ]
