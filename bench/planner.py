"""The planner without a GPU: every number here is computed or simulated, whatever the profiles are.

python -m bench.planner [--only goodput,exhaustive,parvagpu] [--gpus 2] [--requests 30000] [--profiles FILE]

planned     (by --only) requests/s that each policy finds a plan for, and nway+type over others; --gpus 1,2,4
goodput     requests/s by policy with 99 % of each model's requests in time: in the simulator, on modelled profiles
exhaustive  how many rate scenarios a policy finds a plan for, against trying everything
parvagpu    GPUs needed for ParvaGPU's public request sets S1-S6, by policy, and how long a plan takes on this machine

--profiles FILE: planned and goodput with these profiles, measured ones say, in place of the modelled H200.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from bench import mixes, parvagpu
from gemlet.load import arrivals
from gemlet.monitor.tables import table
from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.search.timing import Timing
from gemlet.serve.profiles import modelled, profile_files
from gemlet.simulate.serving import peak
from gemlet.simulate.serving.simulator import simulate

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

H200 = modelled.h200()
POLICIES = ("timeshare", "static", "selftuning", "gpulet-noint", "gpulet", "nway", "nway+type")


def simulated_peak(known: Profiles, mix: str, made: Plan, start: float, requests: int) -> float:
    """The highest rate of the application at which 99 % of each model's requests are in time with this plan."""

    def holds(times: float) -> bool:
        wanted = mixes.demands(known, mixes.MIXES[mix], times)
        seconds = requests / sum(d.rate for d in wanted)
        streams = {
            d.model: arrivals.times(
                arrivals.constant(d.rate), arrivals.gaps("poisson", 1.0, random.Random(f"{mix}/{d.model}")), seconds
            )
            for d in wanted
        }
        slos = {d.model: d.slo_ms for d in wanted}
        return simulate(made, known, streams, slos, seconds).worst_attainment >= peak.GOAL

    return peak.highest(holds, start=start, steps=6)


def best_served(
    known: Profiles, mix: str, policy: str, gpus: int, requests: int, options: PlanOptions
) -> tuple[float, float]:
    """The highest rate of the application that is planned, and the highest that is served by one of three plans:
    for that rate, for 95 % and for 90 % of it, since a plan that leaves something in reserve may serve more."""
    weights = mixes.MIXES[mix]
    planned, made = mixes.largest_plan(known, weights, policy, gpus, options)
    served = 0.0
    for part in (1.0, 0.95, 0.9):
        if part < 1 and made is not None:
            wanted = mixes.demands(known, weights, planned * part)
            found = plan(known, wanted, Inventory(gpus=gpus), None, options, policy=policy)
            made = found if isinstance(found, Plan) else None
        if made is not None:
            served = max(served, simulated_peak(known, mix, made, planned * part, requests))
    return planned, served


def over(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else "-"


def planned_rates(known: Profiles, counts: list[int]) -> None:
    print(
        f"planned: computed, {known.device.name}, {known.origin} profiles; requests/s that a policy finds a plan for,"
    )
    print("SLO as below. bound: if gpu-lets could be cut to measure and had no neighbours; then nway+type over others")
    policies = ("timeshare", "gpulet", "gpulet-noint", "nway", "nway+type")
    rows = []
    for gpus in counts:
        for mix, weights in mixes.MIXES.items():
            total, options = sum(weights.values()), mixes.exact(weights, gpus)
            found = {p: mixes.largest_plan(known, weights, p, gpus, options)[0] for p in policies}
            gains = [over(found["nway+type"], found[base]) for base in ("timeshare", "gpulet")]
            numbers = [f"{rate * total:.0f}" for rate in (*found.values(), mixes.bound(known, weights, gpus))]
            rows.append((str(gpus), mix, *numbers, *gains))
    header = ("GPUs", "mix", *policies, "bound", "/ timeshare", "/ gpulet")
    print("\n".join(table(header, rows, right=frozenset(header[2:]))))


def goodput(known: Profiles, gpus: int, requests: int) -> None:
    print(f"goodput: simulated, {gpus} x {known.device.name}, {known.origin} profiles, Poisson arrivals.")
    print(f"SLO = 2 x latency at batch 32 on the whole device, at least {mixes.LEAST_SLO_MS:g} ms. planned: requests/s")
    print("that the policy accepts; served: what the simulator serves with 99 % of each model in time, the best of the")
    print("plans for 100, 95 and 90 % of what is accepted")
    rows = []
    for mix, weights in mixes.MIXES.items():
        total, options = sum(weights.values()), mixes.exact(weights, gpus)
        found = {policy: best_served(known, mix, policy, gpus, requests, options) for policy in POLICIES}
        for policy, (planned, served) in found.items():
            bases = (found["timeshare"][1], found["gpulet"][1])
            gains = (over(served, base) for base in bases)
            rows.append((mix, policy, f"{planned * total:.0f}", f"{served * total:.0f}", *gains))
    header = ("mix", "policy", "planned/s", "served/s", "x timeshare", "x gpulet")
    print("\n".join(table(header, rows, right=frozenset(header[2:]))))


def exhaustive(grid: int = 5) -> None:
    models = ("googlenet", "resnet50", "vgg16", "bert", "mobilenet_v2")
    slos = {model: mixes.slo(H200, model) for model in models}
    timing = Timing(H200, slos, grid)
    full = {model: timing.capacity(model, grid).rate for model in models}
    options = PlanOptions(grid=grid, quantile=0.5)
    policies = ("exhaustive", "nway+type", "nway", "gpulet")
    print("exhaustive: computed; five models at 0, 20, 40 or 60 % of what all GPUs can serve of each: 1023 scenarios,")
    print(
        f"sizes in steps of {100 // grid} %. of those: scenarios among the ones that trying everything finds a plan for"
    )
    rows = []
    for gpus in (1, 2):
        found: dict[str, set[tuple[int, ...]]] = {policy: set() for policy in policies}
        for levels in product(range(4), repeat=len(models)):
            if not any(levels):
                continue
            wanted = [
                Demand(model=model, rate=0.2 * gpus * level * full[model], slo_ms=slos[model])
                for model, level in zip(models, levels, strict=True)
            ]
            for policy in policies:
                if isinstance(plan(H200, wanted, Inventory(gpus=gpus), None, options, policy=policy), Plan):
                    found[policy].add(levels)
        best = found["exhaustive"]
        for policy, got in found.items():
            rows.append((str(gpus), policy, str(len(got)), f"{len(got & best)} ({len(got & best) / len(best):.1%})"))
    print("\n".join(table(("GPUs", "policy", "schedulable", "of those"), rows)))


def parvagpu_sets() -> None:
    known, sets = parvagpu.profiles(), parvagpu.demands()
    print("ParvaGPU S1-S6: computed from its authors' measurements on an A100 (see bench/parvagpu.py), rates without")
    print("headroom, no interference, no memory; GPUs needed. Its own deployment needs 2 3 5 7 13 16 = 46.")
    print(f"ms: the slowest of the six plans, best of three, on {platform.processor() or platform.machine()}")
    rows = []
    for policy, grid in [
        ("exclusive", 10), ("timeshare", 10), ("selftuning", 10), ("static", 10), ("gpulet", 10),
        ("nway", 10), ("nway", 16), ("nway", 20),
    ]:  # fmt: skip
        options = PlanOptions(grid=grid, quantile=0.5, executor="mps")  # one process a gpu-let, as it was measured
        counts, slowest = [], 0.0
        for wanted in sets.values():
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                made = plan(known, wanted, Inventory(gpus=64), None, options, policy=policy)
                best = min(best, time.perf_counter() - start)
            assert not isinstance(made, Infeasible), made.why
            counts.append(len(made.gpus))
            slowest = max(slowest, best)
        name = f"{policy}, 1/{grid}" if policy == "nway" else policy
        rows.append((name, *map(str, counts), str(sum(counts)), f"{1000 * slowest:.0f}"))
    bound = [
        sum(timing.fluid_ticks(d.model, d.rate) for d in wanted) / 10
        for wanted in sets.values()
        for timing in [Timing(known, {d.model: d.slo_ms for d in wanted}, 10)]
    ]
    rows.append(("fluid bound, 1/10", *(f"{value:.2f}" for value in bound), f"{sum(bound):.1f}", ""))
    header = ("policy", *parvagpu.SETS, "all", "ms")
    print("\n".join(table(header, rows, right=frozenset(header[1:]))))


def main() -> None:
    sections = ("goodput", "exhaustive", "parvagpu", "planned")
    parser = argparse.ArgumentParser(description="The planner by numbers; all of them computed or simulated.")
    parser.add_argument("--only", default=",".join(sections[:-1]), help="some of " + ", ".join(sections))
    parser.add_argument("--gpus", default="2", help="how many; several numbers, 1,2,4, for planned")
    parser.add_argument("--profiles", type=Path, help="in place of the modelled H200")
    parser.add_argument("--requests", type=int, default=30_000, help="of each simulated run")
    parser.add_argument("--simulate", action="store_true", help="no effect: there is nothing else here")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(sections):
        parser.error(f"--only: {', '.join(unknown)} is none of {', '.join(sections)}")
    counts = [int(count) for count in arguments.gpus.split(",")]
    known = profile_files.load_profiles(arguments.profiles) if arguments.profiles else H200
    for section in chosen:
        if section == "planned":
            planned_rates(known, counts)
        elif section == "goodput":
            goodput(known, counts[0], arguments.requests)
        elif section == "exhaustive":
            exhaustive()
        else:
            parvagpu_sets()
        print()


if __name__ == "__main__":
    main()
