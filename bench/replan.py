"""Rates that change for minutes: a plan that follows them against plans that do not.

python -m bench.replan --simulate [--traffic l4|h200] [--seconds 300] [--gpus 4] [--seed 1] [--changes]
                        [--apart] [--hop 0.4] [--warm 4] [--horizon 5] [--spread measured]
python -m bench.replan --live --executor green --profiles h200 [--seconds 300] [--plans follow,mean,highest]
                        [--policies nway+type,selftuning] [-o FILE]

simulate  computed: the simulator runs the live queues and the live controller's decisions in virtual time. No GPU is
          used. Traffic l4: on modelled profiles of an NVIDIA L4 (a small device: the rates that fill it can be
          simulated one request at a time); h200: what --live sends, on --profiles.
live      `gemlet load` sends the traffic to `gemlet serve` over HTTP, on one device. Ctrl-C and SIGTERM end it, with
          the results so far. With `--executor modelled` batches take the time of their profile, and no GPU is used.

apart     --apart: every model has gpu-lets of its own, which have to change when rates do; pools bear most changes.

Periods and steps are made for 300 seconds; with other --seconds they are as much shorter or longer.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from bench import replan_live
from bench.arguments import count, output, positive
from bench.mixes import COMPARED
from bench.traffic import LENGTH_S, TRAFFIC, of, slos_of
from gemlet.errors import GemletError
from gemlet.load import arrivals
from gemlet.monitor.tables import table
from gemlet.serve.control.settings import ControlSettings
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.policies import POLICIES
from gemlet.serve.profiles import modelled, profile_files
from gemlet.serve.profiles.profile import Device, Profiles
from gemlet.simulate.serving import replanning
from gemlet.simulate.serving.simulator import EVEN, MEASURED, Outcome, Spread, simulate


def l4() -> Profiles:
    """A roofline on the data sheet of an NVIDIA L4: 121 TFLOP/s, 0.3 TB/s, 58 SMs, 24 GB."""
    device = Device(name="NVIDIA L4 (modelled)", sms=58, sm_step=4, memory_mib=23_000)
    names = TRAFFIC["l4"].models
    models = {name: modelled.profile(modelled.ARCHITECTURES[name], tflops=121.0, tb_per_s=0.3) for name in names}
    return Profiles(origin="modelled", device=device, models=models, note="computed from data-sheet numbers")


def spread_of(text: str) -> Spread:
    """Raises ValueError."""
    if text == "measured":
        return MEASURED
    batch, way = (float(part) for part in text.split(","))
    return Spread(batch=batch, way=way)


def compute(options: argparse.Namespace) -> None:
    traffic = TRAFFIC[options.traffic]
    profiles = l4() if options.traffic == "l4" else profile_files.load_profiles(Path(options.profiles))
    rates = traffic.rates(options.seconds, options.times)
    slos = slos_of(profiles, traffic)
    most = options.gpus or traffic.gpus

    def demands(which: str) -> list[Demand]:
        return [Demand(model=model, rate=of(which, rate), slo_ms=slos[model]) for model, rate in rates.items()]

    planner = PlanOptions(**replan_live.planner_of(options))

    def run(start: Plan, control: replanning.SimulatedController | None) -> Outcome:
        streams = {
            model: arrivals.times(
                rate, arrivals.gaps("poisson", 1.0, random.Random(f"{options.seed}/{model}")), options.seconds
            )
            for model, rate in rates.items()
        }
        return simulate(
            start,
            profiles,
            streams,
            slos,
            options.seconds,
            seed=options.seed,
            control=control,
            hop_ms=options.hop,
            spread=options.spread,
        )

    rows = []
    histories = []
    for name, which, policy, follows in (
        ("fixed, for the mean rates", "mean", "nway+type", False),
        ("fixed, for the highest rates", "highest", "nway+type", False),
        *((f"planned anew, {said}", "first", policy, True) for policy, said in COMPARED.items()),
    ):
        if follows and options.policies and policy not in options.policies.split(","):
            continue
        if not follows and options.policies:
            continue
        gpus = most if which != "highest" else 99
        start = plan(profiles, demands(which), Inventory(gpus=gpus), None, planner, policy=policy)
        if not isinstance(start, Plan):
            rows.append((name, "no plan", *[""] * 7))
            continue
        control = None
        if follows:
            settings = ControlSettings(policy=policy, most=most, planner=planner, horizon_s=options.horizon)
            costs = replanning.Costs(warm=options.warm)
            control = replanning.SimulatedController(
                profiles, demands("first"), settings, start, devices=most, costs=costs
            )
        began = time.perf_counter()
        outcome = run(start, control)
        took = time.perf_counter() - began
        short = replanning.shortages({m: r.at for m, r in rates.items()}, outcome.plans, options.seconds)
        rows.append(
            (
                name,
                f"{1 - outcome.attainment:.2%}",
                f"{1 - outcome.worst_attainment:.2%}",
                f"{replanning.gpu_seconds(outcome.plans, options.seconds) / options.seconds:.2f}",
                f"{max((s.end - s.begin for s in short), default=0.0):.1f} s",
                f"{sum(s.end - s.begin for s in short):.1f} s",
                str(len(outcome.plans) - 1),
                str(sum(replan_live.SAME not in str(change) for change in control.history) if control else 0),
                f"{took:.0f} s",
            )
        )
        if control is not None:
            histories.append((name, control.history))
    header = (
        "plan",
        "violations",
        "worst model",
        "GPUs",
        "longest short",
        "short in all",
        "new plans",
        "other gpu-lets",
        "computed in",
    )
    total = sum(of("mean", rate) for rate in rates.values())
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="in virtual time")
    parser.add_argument("--live", action="store_true", help="with gemlet serve and gemlet load")
    parser.add_argument("--seconds", type=positive, default=LENGTH_S)
    parser.add_argument("--times", type=positive, default=1.0, help="multiplies all rates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profiles", default="h200", help="of traffic h200: a name or a file; default h200")
    parser.add_argument("--traffic", choices=sorted(TRAFFIC), help="default: l4, and h200 with --live")
    parser.add_argument("--gpus", type=count, help="simulate: at most; default 4, of h200 1")
    parser.add_argument("--changes", action="store_true", help="also list what the controller did")
    parser.add_argument("--executor", default="green", choices=["green", "mps", "streams", "modelled"], help="live")
    parser.add_argument("--plans", default="follow", help="live: of follow,mean,highest, one run after the other")
    parser.add_argument(
        "--policies",
        help="of the planner, one run after the other; default: nway+type live, all and two fixed plans else",
    )
    parser.add_argument(
        "--warm", type=float, default=replanning.Costs().warm,
        help="simulate: batches of each size until a new gpu-let is ready; default %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--horizon", type=positive, default=ControlSettings().horizon_s,
        help="simulate: plan for the rates of so many seconds later; default %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--spread", type=spread_of, default=EVEN, metavar="BATCH,WAY",
        help="simulate: p95 over the median of batches beside neighbours, and of the hop; or measured: "
        f"{MEASURED.batch:g},{MEASURED.way:g}; default none",
    )  # fmt: skip
    parser.add_argument("--apart", action="store_true", help="no pools: gpu-lets change as rates do")
    parser.add_argument("--hop", type=float, default=0.0, help="ms of a batch to its executor and back; default 0")
    parser.add_argument("-o", "--output", type=output, help="live: JSON, written as results come")
    options = parser.parse_args()
    if options.simulate == options.live:
        parser.error("either --simulate or --live")
    if options.live:
        options.policies = options.policies or "nway+type"
    if unknown := [policy for policy in (options.policies or "timeshare").split(",") if policy not in POLICIES]:
        parser.error(f"no policy {', '.join(unknown)}; there are {', '.join(sorted(POLICIES))}")
    options.traffic = options.traffic or ("h200" if options.live else "l4")
    if not options.live:
        compute(options)
        return 0
    if options.traffic == "l4":
        parser.error("traffic l4 is for the simulator: nobody has profiles of an L4")
    return replan_live.run(options)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (GemletError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
