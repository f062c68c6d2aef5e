"""The mixes of models that goodput is shown for, and the highest rate at which a policy has a plan for one. Pure."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.search.timing import Timing
from gemlet.simulate.serving import peak

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

# Requests of each model for one of the application. game and traffic are gpulet's applications, taken stage by stage.
MIXES: dict[str, dict[str, float]] = {
    "game": {**{f"lenet{n}": 1.0 for n in range(1, 7)}, "resnet50": 1.0},
    "traffic": {"ssd-mobilenetv1": 1.0, "googlenet": 1.0, "vgg16": 1.0},
    "language": {"bert": 1.0, "decoder": 6.0, "googlenet": 1.0, "mnasnet1_0": 2.0},
    "vision": {"resnet50": 2.0, "vgg16": 1.0, "mobilenet_v2": 4.0, "densenet161": 0.5},
    # gpulet's scenarios of single models, in its proportions.
    "equal": {"lenet1": 1.0, "googlenet": 1.0, "resnet50": 1.0, "ssd-mobilenetv1": 1.0, "vgg16": 1.0},
    "long-only": {"resnet50": 1.0, "ssd-mobilenetv1": 1.0, "vgg16": 1.0},
    "short-skew": {"lenet1": 2.0, "googlenet": 2.0, "resnet50": 2.0, "ssd-mobilenetv1": 1.0, "vgg16": 1.0},
    "opposites": {"bert": 1.0, "vgg16": 1.0, "dlrm": 6.0, "mobilenet_v2": 4.0},
}
# The policies that benchmarks compare, the baseline first, with what a reader knows them by.
COMPARED: dict[str, str] = {
    "timeshare": "timeshare",
    "selftuning": "selftuning (GSLICE)",
    "gpulet-noint": "gpulet-noint",
    "gpulet": "gpulet",
    "nway+type": "nway+type",
}
LEAST_SLO_MS = 5.0  # twice the latency of a LeNet would be a tenth of a millisecond, which no network keeps
FEW, HALVES = 3, 2  # gpulet: at most so many models take turns on a gpu-let, on one of so many gpu-lets of a device
FINE = 60  # of a device: sizes for the bound below, finer than any policy's


def slo(known: Profiles, model: str) -> float:
    """gpulet's rule: twice the latency of a batch of 32 on the whole device; milliseconds."""
    return max(LEAST_SLO_MS, 2 * known.models[model].surface.latency(1.0, 32))


def demands(known: Profiles, weights: dict[str, float], times: float) -> list[Demand]:
    """``weights`` requests of each model, ``times`` times a second."""
    return [Demand(model=model, rate=weight * times, slo_ms=slo(known, model)) for model, weight in weights.items()]


def exact(weights: dict[str, float], gpus: int, **more: object) -> PlanOptions:
    """For the rates themselves. More models than one device may have with gpulet's own limit are let in all the same:
    its paper serves such mixes on four devices, and a row of zeros would say nothing."""
    several = max(FEW, ceil(len(weights) / (HALVES * gpus)))
    return PlanOptions(quantile=0.5, max_models=several, **more)  # type: ignore[arg-type]


def bound(known: Profiles, weights: dict[str, float], gpus: int) -> float:
    """More than any policy can plan for: if gpu-lets could be cut to measure, and had no neighbours."""
    timing = Timing(known, {model: slo(known, model) for model in weights}, FINE)
    return gpus * FINE / sum(timing.fluid_ticks(model, weight) for model, weight in weights.items())


def largest_plan(
    known: Profiles, weights: dict[str, float], policy: str, gpus: int, options: PlanOptions
) -> tuple[float, Plan | None]:
    """The highest rate of the application that the policy finds a plan for, and that plan."""
    plans: dict[float, Plan] = {}

    def possible(times: float) -> bool:
        made = plan(known, demands(known, weights, times), Inventory(gpus=gpus), None, options, policy=policy)
        if isinstance(made, Plan):
            plans[times] = made
        return isinstance(made, Plan)

    times = peak.highest_below(possible, bound(known, weights, gpus))
    return times, plans.get(times)
