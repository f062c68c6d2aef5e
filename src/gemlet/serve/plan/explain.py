"""Why each gpu-let is as it is, in sentences: its size, its turns, its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.serve.plan.search.draft import Draft, DraftGpu, DraftGpuLet, ServedGpuLet


def explain(draft: Draft) -> None:
    """Adds sentences to every gpu-let of the draft."""
    for gpu in draft.gpus:
        for gpu_let in gpu:
            if gpu_let.rates:
                others = [other for other in gpu if other is not gpu_let and other.rates]
                how = draft.serve(gpu_let, others)
                assert how is not None
                gpu_let.why += [
                    _size(draft, gpu_let, gpu),
                    *_turns(draft, gpu_let, how),
                    _neighbours(draft, gpu_let, others, how),
                ]


def percent(draft: Draft, ticks: int) -> str:
    return f"{100 * ticks / draft.grid:.4g}%"


def _size(draft: Draft, gpu_let: DraftGpuLet, gpu: DraftGpu) -> str:
    timing = draft.timing
    size = percent(draft, gpu_let.ticks)
    if gpu_let.pool:
        return f"{size}: {_pool(gpu_let, gpu)}"
    if len(gpu_let.rates) > 1:
        return f"{size}: shared, because these rates are too small for a gpu-let each"
    ((model, rate),) = gpu_let.rates.items()
    others = [other for other in gpu if other is not gpu_let and other.rates]
    slowdown = draft.slowdown(model, others)
    can = timing.capacity(model, gpu_let.ticks, slowdown).rate
    if gpu_let.ticks > 1 and timing.capacity(model, gpu_let.ticks - 1, slowdown).rate < rate:
        less = timing.capacity(model, gpu_let.ticks - 1, slowdown).rate
        return (
            f"{size}: the least that serves {rate:.4g} requests/s (up to {can:.4g});"
            f" {percent(draft, gpu_let.ticks - 1)} would serve {less:.4g}"
        )
    if gpu_let.ticks == timing.target(model):
        return (
            f"{size}: most requests for each SM ({can:.4g}/s here), so this size is the cheapest way to serve {model}"
        )
    if gpu_let.ticks == draft.grid:
        return f"{size}: the whole device, which serves up to {can:.4g} requests/s"
    chosen = "the smallest there is" if gpu_let.ticks == 1 else "what was free here"
    return f"{size}: {chosen}; serves up to {can:.4g} requests/s of which {rate:.4g} are planned"


def _pool(gpu_let: DraftGpuLet, gpu: DraftGpu) -> str:
    names = " and ".join(gpu_let.rates)
    mates = sum(gpu_let.pooled_with(other) for other in gpu)
    if mates == 1:
        whose = (
            "which takes so little time that it" if len(gpu_let.rates) == 1 else "which take so little time that they"
        )
        return f"for {names}, {whose} would only cut up the others' batches"
    return (
        f"one of a pool of {mates} that all serve {names}; whichever is free takes the most urgent batch,"
        " so a burst of one model finds them all"
    )


def _turns(draft: Draft, gpu_let: DraftGpuLet, how: ServedGpuLet) -> list[str]:
    lines = []
    for model, batch, latency, worst in zip(gpu_let.rates, how.batches, how.latencies, how.worst, strict=True):
        lines.append(
            f"{model}: a batch of {batch} takes {latency:.3g} ms; a request that just missed one waits"
            f" {worst:.3g} of {draft.timing.slos[model]:g} ms"
        )
    return lines


def _neighbours(draft: Draft, gpu_let: DraftGpuLet, others: list[DraftGpuLet], how: ServedGpuLet) -> str:
    if not others:
        return "no neighbours"
    names = ", ".join(f"{' and '.join(other.rates)} ({percent(draft, other.ticks)})" for other in others)
    if draft.alone:
        reason = "interference is left out" if not draft.options.interference else "the profile has no interference"
        return f"beside {names}; {reason}"
    slow = max(how.slowdowns)
    kind = " by the worst neighbour possible" if draft.options.blind else ""
    return f"beside {names}: up to {slow - 1:.1%} slower{kind}"
