"""``gemlet simulate --serve``: how a plan would serve, in virtual time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from gemlet.errors import ConfigError, GemletError
from gemlet.monitor.tables import table
from gemlet.serve.plan import picture, plan_files
from gemlet.serve.plan.model import Infeasible
from gemlet.serve.plan.planner import inventory, plan
from gemlet.serve.profiles import kinds
from gemlet.simulate.serving import peak, simulator

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.plan.demand_file import DemandedService
    from gemlet.serve.plan.model import Plan
    from gemlet.serve.plan.plan_files import Counts
    from gemlet.serve.profiles.kinds import Known
    from gemlet.simulate.serving.simulator import Outcome, Spread

SCHEMA = 1
PEAK_SECONDS = 10.0  # each step of a search runs at most this long


class NoPlan(GemletError):
    exit_code = 1


def run(
    path: Path, *, given: Path | None, profiles: Path | None, gpus: Counts | None, spread: Spread,
    policy: str | None, seconds: float | None, find_peak: bool, output: str,
) -> None:  # fmt: skip
    """Plans for the file's demands (or takes a ``given`` plan), simulates, and prints what became of the requests."""
    service, known = load(path, profiles, gpus)
    made = planned(service, known, policy) if given is None else plan_files.load_plan(given, known, service.demands)
    for gpu in made.gpus:
        there = kinds.on(known, gpu.index)
        for model in sorted({task.model for gpu_let in gpu.gpu_lets for task in gpu_let.tasks} - there.models.keys()):
            where = f" for {gpu.device}" if gpu.device else ""
            raise ConfigError(f"no profile of model {model!r}{where}, which the plan has", path=str(given))
    length = seconds or service.seconds
    outcome = simulate(service, made, known, length, spread=spread)
    highest = (
        peak.highest(
            lambda times: (
                simulate(service, made, known, min(length, PEAK_SECONDS), times, spread=spread).worst_attainment
                >= peak.GOAL
            )
        )
        if find_peak
        else None
    )
    if output == "json":
        import json

        click.echo(json.dumps(document(made, outcome, highest), indent=2))
    else:
        click.echo("\n".join(text(made, outcome, highest)))


def load(path: Path, profiles: Path | None, gpus: Counts | None) -> tuple[DemandedService, Known]:
    """A demand file with as many devices as there are, and what is known of them."""
    service = plan_files.load_service(path)
    known, count = plan_files.load_known(service, path.parent, profiles, gpus)
    return (service if count is None else dataclasses.replace(service, gpus=count)), known


def planned(service: DemandedService, known: Known, policy: str | None) -> Plan:
    """The plan for a service. Raises NoPlan."""
    made = plan(
        known, service.demands, inventory(known, range(service.gpus)), None, service.options,
        policy=policy or service.policy,
    )  # fmt: skip
    if isinstance(made, Infeasible):
        raise NoPlan(f"no plan: {'; '.join(made.why)}", hint="run `gemlet plan` to see what is needed")
    return made


def simulate(
    service: DemandedService, made: Plan, known: Known, seconds: float, times: float = 1.0, *, spread: Spread
) -> Outcome:
    """One run with all rates multiplied by ``times``."""
    slos = {demand.model: demand.slo_ms for demand in service.demands}
    coming = service.arrivals(seconds, times)
    return simulator.simulate(
        made, known, coming, slos, seconds, seed=service.seed, hop_ms=service.hop_ms, spread=spread
    )


def document(made: Plan, outcome: Outcome, highest: float | None) -> dict[str, Any]:
    """What -o json prints."""
    return {
        "schema": SCHEMA,
        "simulated": True,
        "profiles": made.origin,
        "device": made.device,
        "policy": made.policy,
        "gpus": len(made.gpus),
        "seconds": outcome.seconds,
        "attainment": outcome.attainment,
        "goodput": outcome.goodput,
        "highest_rate": highest,
        "models": models(outcome),
    }


def models(outcome: Outcome) -> dict[str, Any]:
    """What became of each model's requests, for -o json."""
    return {
        name: {
            "sent": tally.sent,
            "in_time": tally.in_time,
            "dropped": tally.dropped,
            "attainment": tally.attainment,
            "goodput": tally.in_time / outcome.seconds,
            "slo_ms": tally.slo_ms,
            **{f"p{100 * q:g}_ms": tally.percentile(q) for q in (0.5, 0.9, 0.95, 0.99)},
        }
        for name, tally in outcome.models.items()
    }


def text(made: Plan, outcome: Outcome, highest: float | None) -> list[str]:
    """What people read."""
    lines = [
        f"simulated, virtual time: {outcome.seconds:g} s; {picture.title(made)}",
        "",
        *picture.lines(made),
        "",
        *model_table(outcome),
        "",
        f"in time: {outcome.attainment:.2%} of all requests; goodput {outcome.goodput:.1f} requests/s",
    ]
    if highest is not None:
        lines.append(
            f"this plan has {peak.GOAL:.0%} of each model's requests in time up to {highest:.3g} x these rates"
        )
    return lines


def model_table(outcome: Outcome) -> list[str]:
    header = ("model", "sent", "goodput/s", "in time", "dropped", "late", "p50", "p90", "p95", "p99", "SLO")
    rows = []
    for name, tally in outcome.models.items():
        ranks = [tally.percentile(q) for q in (0.5, 0.9, 0.95, 0.99)]
        late = len(tally.latencies) - tally.in_time
        rows.append(
            (
                name,
                str(tally.sent),
                f"{tally.in_time / outcome.seconds:.1f}",
                f"{tally.attainment:.2%}",
                str(tally.dropped),
                str(late),
                *("-" if value is None else f"{value:.2f} ms" for value in ranks),
                f"{tally.slo_ms:g} ms",
            )
        )
    return table(header, rows, right=frozenset(header) - {"model"})
