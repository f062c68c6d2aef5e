"""Rates that change for minutes: a plan that follows them against plans that do not.

python bench/replan.py --simulate [--seconds 300] [--gpus 4] [--seed 1] [--changes]

Computed: the simulator runs the live queues and the live controller's decisions in virtual time, on modelled profiles
of an NVIDIA L4 (a small device: the rates that fill it can be simulated one request at a time). No GPU was used.
"""

from __future__ import annotations

import argparse
import random
import time
from math import pi, sin

from gemlet.monitor.tables import table
from gemlet.serve import arrivals, modelled
from gemlet.serve.control import simulated
from gemlet.serve.control.settings import Settings
from gemlet.serve.planner import Demand, Inventory, Plan, plan
from gemlet.serve.profiles import Device, Profiles
from gemlet.serve.simulator import Outcome, simulate

# Model -> mean requests/s, swing, period in s, phase; and steps: from which second to which, times how much.
TRAFFIC: dict[str, tuple[float, float, float, float]] = {
    "resnet50": (1200, 0.5, 120, 0.0),
    "vgg16": (350, 0.5, 90, 0.3),
    "bert": (500, 0.4, 150, 0.6),
    "mobilenet_v2": (2500, 0.6, 60, 0.5),
    "googlenet": (1200, 0.3, 200, 0.8),
}
STEPS: tuple[tuple[str, float, float, float], ...] = (
    ("vgg16", 50, 110, 2.0), ("resnet50", 140, 180, 1.8), ("bert", 200, 240, 2.0), ("mobilenet_v2", 250, 280, 0.3),
)  # fmt: skip
LEAST_SLO_MS = 10.0
RESOLUTION_S = 0.5


def l4() -> Profiles:
    """A roofline on the data sheet of an NVIDIA L4: 121 TFLOP/s, 0.3 TB/s, 58 SMs, 24 GB."""
    device = Device(name="NVIDIA L4 (modelled)", sms=58, sm_step=4, memory_mib=23_000)
    models = {name: modelled.profile(modelled.ARCHITECTURES[name], tflops=121.0, tb_per_s=0.3) for name in TRAFFIC}
    return Profiles(origin="modelled", device=device, models=models, note="computed from data-sheet numbers")


def rate_of(model: str, seconds: float) -> arrivals.Steps:
    mean, swing, period, phase = TRAFFIC[model]

    def at(second: float) -> float:
        factor = 1.0
        for name, begin, end, times in STEPS:
            if name == model and begin <= second < end:
                factor *= times
        return factor * mean * (1 + swing * sin(2 * pi * (second / period + phase)))

    return arrivals.trace([at(RESOLUTION_S * step) for step in range(round(seconds / RESOLUTION_S) + 1)], RESOLUTION_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="in virtual time; there is no other way yet")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", action="store_true", help="also list what the controller did")
    options = parser.parse_args()
    if not options.simulate:
        parser.error("only --simulate works: nothing here drives a GPU")
    profiles = l4()
    rates = {model: rate_of(model, options.seconds) for model in TRAFFIC}
    slos = {m: max(LEAST_SLO_MS, round(2 * p.surface.latency(1.0, 32), 1)) for m, p in profiles.models.items()}

    def demands(which: str) -> list[Demand]:
        def rate(model: str) -> float:
            values = rates[model].rates
            return {"first": values[0], "mean": sum(values) / len(values), "highest": max(values)}[which]

        return [Demand(model=model, rate=rate(model), slo_ms=slos[model]) for model in rates]

    def run(start: Plan, control: simulated.SimulatedController | None) -> Outcome:
        streams = {
            model: arrivals.times(
                rate, arrivals.gaps("poisson", 1.0, random.Random(f"{options.seed}/{model}")), options.seconds
            )
            for model, rate in rates.items()
        }
        return simulate(start, profiles, streams, slos, options.seconds, seed=options.seed, control=control)

    rows = []
    histories = []
    for name, which, policy, follows in (
        ("fixed, for the mean rates", "mean", "nway+type", False),
        ("fixed, for the highest rates", "highest", "nway+type", False),
        ("planned anew, timeshare", "first", "timeshare", True),
        ("planned anew, gpulet", "first", "gpulet", True),
        ("planned anew, nway+type", "first", "nway+type", True),
    ):
        gpus = options.gpus if which != "highest" else 99
        start = plan(profiles, demands(which), Inventory(gpus=gpus), None, policy=policy)
        if not isinstance(start, Plan):
            rows.append((name, "no plan", *[""] * 6))
            continue
        control = None
        if follows:
            settings = Settings(policy=policy, most=options.gpus)
            control = simulated.SimulatedController(profiles, demands("first"), settings, start, devices=options.gpus)
        began = time.perf_counter()
        outcome = run(start, control)
        took = time.perf_counter() - began
        short = simulated.shortages({m: r.at for m, r in rates.items()}, outcome.plans, options.seconds)
        rows.append(
            (
                name,
                f"{1 - outcome.attainment:.2%}",
                f"{1 - outcome.worst_attainment:.2%}",
                f"{simulated.gpu_seconds(outcome.plans, options.seconds) / options.seconds:.2f}",
                f"{max((s.end - s.begin for s in short), default=0.0):.1f} s",
                f"{sum(s.end - s.begin for s in short):.1f} s",
                str(len(outcome.plans) - 1),
                f"{took:.0f} s",
            )
        )
        if control is not None:
            histories.append((name, control.history))
    header = ("plan", "violations", "worst model", "GPUs", "longest short", "short in all", "new plans", "computed in")
    total = sum(sum(rate.rates) / len(rate.rates) for rate in rates.values())
    print(f"computed, virtual time: {options.seconds:g} s of {total:.0f} requests/s on average, {profiles.device.name}")
    print("SLOs:", ", ".join(f"{model} {slo:g} ms" for model, slo in slos.items()))
    print("\n".join(table(header, rows, right=frozenset(header) - {"plan"})))
    print(
        "short: time in which some rate was above what the plan in force could serve; the longest is the reaction time"
    )
    if options.changes:
        for name, history in histories:
            print(f"\n{name}")
            print("\n".join(f"{change.at:7.2f} s  {change}" for change in history))


if __name__ == "__main__":
    main()
