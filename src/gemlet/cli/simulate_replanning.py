"""``gemlet simulate --serve --replan``: how well a service would do with a plan that follows the rates, in virtual
time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gemlet.cli import simulate_serving
from gemlet.serve.control.settings import ControlSettings
from gemlet.serve.plan.model import Infeasible
from gemlet.serve.plan.planner import inventory, plan
from gemlet.simulate.serving import replanning, simulator

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.control.change import Change
    from gemlet.serve.plan.demand_file import DemandedService
    from gemlet.serve.plan.plan_files import Counts
    from gemlet.serve.profiles.kinds import Known
    from gemlet.simulate.serving.replanning import Shortage
    from gemlet.simulate.serving.simulator import Outcome, Spread

SCHEMA = 1


def run(
    path: Path, *, profiles: Path | None, gpus: Counts | None, spread: Spread, policy: str | None,
    seconds: float | None, output: str,
) -> None:  # fmt: skip
    """Plans for the first second, follows the rates from then on, and prints what became of the requests."""
    service, known = simulate_serving.load(path, profiles, gpus)
    length = seconds or service.seconds
    outcome, history = replay(service, known, policy or service.policy, length, spread)
    rates = {model.demand.model: model.rate.at for model in service.models}
    short = replanning.shortages(rates, outcome.plans, length)
    if output == "json":
        click.echo(json.dumps(document(outcome, history, short), indent=2))
    else:
        click.echo("\n".join(text(outcome, history, short)))


def replay(
    service: DemandedService, known: Known, policy: str, seconds: float, spread: Spread
) -> tuple[Outcome, list[Change]]:
    """One run with the controller in the loop. Raises NoPlan if there is none for the first second."""
    demands = service.demands_at(0.0)
    first = plan(known, demands, inventory(known, range(service.gpus)), None, service.options, policy=policy)
    if isinstance(first, Infeasible):
        raise simulate_serving.NoPlan(
            f"no plan for the first second: {'; '.join(first.why)}", hint="run `gemlet plan` to see what is needed"
        )
    settings = ControlSettings(policy=policy, planner=service.options, most=service.gpus)
    controller = replanning.SimulatedController(known, demands, settings, first, devices=service.gpus)
    slos = {demand.model: demand.slo_ms for demand in demands}
    outcome = simulator.simulate(
        first, known, service.arrivals(seconds), slos, seconds,
        seed=service.seed, hop_ms=service.hop_ms, spread=spread, control=controller,
    )  # fmt: skip
    return outcome, controller.history


def document(outcome: Outcome, history: list[Change], short: list[Shortage]) -> dict[str, Any]:
    """What -o json prints."""
    made = outcome.plans[0][1]
    return {
        "schema": SCHEMA,
        "simulated": True,
        "profiles": made.origin,
        "device": made.device,
        "policy": made.policy,
        "seconds": outcome.seconds,
        "attainment": outcome.attainment,
        "goodput": outcome.goodput,
        "mean_gpus": replanning.gpu_seconds(outcome.plans, outcome.seconds) / outcome.seconds,
        "models": simulate_serving.models(outcome),
        "changes": [
            {
                "at": change.at,
                "reason": change.cause.reason,
                "text": change.cause.text,
                "emergency": change.cause.emergency,
                "gpus": change.gpus,
                "lets_moved": change.moved,
                "lets_stayed": change.stayed,
                "part": change.part,
                "took_s": change.took_s,
            }
            for change in history
        ],
        "shortages": [{"begin": s.begin, "end": s.end, "models": list(s.models)} for s in short],
    }


def text(outcome: Outcome, history: list[Change], short: list[Shortage]) -> list[str]:
    """What people read."""
    made = outcome.plans[0][1]
    gpus = replanning.gpu_seconds(outcome.plans, outcome.seconds) / outcome.seconds
    lines = [
        f"simulated, virtual time: {outcome.seconds:g} s; {made.policy}, planned anew as the rates change,"
        f" on {gpus:.2f} GPUs on average: {made.device}",
        "",
        *simulate_serving.model_table(outcome),
        "",
        *(f"{change.at:7.1f} s  {change}" for change in history),
        *([""] if history else []),
        f"in time: {outcome.attainment:.2%} of all requests; goodput {outcome.goodput:.1f} requests/s",
    ]
    if short:
        longest = max(s.end - s.begin for s in short)
        total = sum(s.end - s.begin for s in short)
        lines.append(
            f"{len(short)} time{'s' * (len(short) != 1)} a rate was above what the plan could serve,"
            f" for {longest:.1f} s at most and {total:.1f} s in all"
        )
    else:
        lines.append("no rate was ever above what the plan could serve")
    assumed = replanning.Costs()
    lines.append(
        f"assumed: {1000 * assumed.plan_s:g} ms for each question to the planner; a new gpu-let is warm after"
        f" {assumed.warm:g} batches of each size; weights loaded at {assumed.load_mib_per_s:g} MiB/s"
    )
    return lines
