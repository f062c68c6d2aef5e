"""``gemlet plan``: which models go on which gpu-lets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import completion, example, options
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.serve.plan import plan_files
    from gemlet.serve.plan.model import Infeasible, Plan

_FILE = click.Path(dir_okay=False, path_type=Path)


MANY_GPUS = 64


@click.command("plan")
@click.argument("demands", type=_FILE, required=False, metavar="DEMANDS")
@click.option(
    "--profiles", type=_FILE, help="A file, or h200 for measured ones; default: the demand file's, else modelled."
)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=completion.policies,
    help="How to plan; `gemlet plan --policies` lists them.",
)
@click.option(
    "--gpus", type=options.Gpus(), metavar="N", help="Devices of the profiled kind; or of several: h200=2,h100.json=1."
)
@click.option("--memory", type=options.Size(), help="Memory of each device, in place of the profile's figure.")
@click.option("--grid", type=options.Whole(1, 100), metavar="N", help="Shares are multiples of 1/N.")
@click.option(
    "--quantile", type=options.Number(), metavar="Q", help="Plan for this quantile of seconds; 0.5: the mean."
)
@click.option(
    "--executor", type=click.Choice(["green", "mps"]), help="One process for each device, or one for each gpu-let."
)
@click.option("--previous", type=_FILE, help="Plan to change as little as possible: JSON, or glet's ModelList.txt.")
@click.option(
    "--glet", type=_FILE, multiple=True, metavar="FILE",
    help="glet's sim-config.json, BackendList.json or Backend_docker.json: devices, policy, options.",
)  # fmt: skip
@click.option("--svg", type=_FILE, help="Also draw the plan into this file.")
@click.option("--why", is_flag=True, help="Say why each gpu-let has its size, batch and neighbours.")
@click.option("--policies", is_flag=True, help="List the policies and stop; as a table or as JSON.")
@example.option("serve/examples/traffic.toml", "gemlet plan")
@options.output("table", "json", "glet", "rates")
def command(
    *,
    demands: Path | None,
    policies: bool,
    profiles: Path | None,
    previous: Path | None,
    glet: tuple[Path, ...],
    svg: Path | None,
    why: bool,
    output: str,
    memory: int | None,
    gpus: plan_files.Counts | None,
    policy: str | None,
    **changed: object,
) -> int:
    """Place the models of DEMANDS (a TOML file, or glet's rates.csv) on gpu-lets.

    Exits with 1 if there is no plan, and says why. No GPU is needed: a plan rests on profiles. -o glet prints a
    ModelList.txt; -o rates does not plan but prints the demands as a rates.csv.
    """
    import msgspec

    from gemlet.cli import messages
    from gemlet.config import text_file
    from gemlet.config.quantities import MIB
    from gemlet.serve.plan import glet_files, picture, plan_files
    from gemlet.serve.plan.model import Infeasible
    from gemlet.serve.plan.planner import inventory, plan
    from gemlet.serve.profiles import kinds

    if policies:
        return _list_policies(output)
    demands = _given(demands)
    service = plan_files.load_service(demands)
    if output == "rates":
        click.echo(glet_files.render_rates(service.demands), nl=False)
        return 0
    known, given = plan_files.load_known(service, demands.parent, profiles, gpus)
    for kind, each in kinds.by_kind(known).items():
        if not each.measured:
            whose = f"the profiles of {kind}" if kind else "the profiles"
            click.echo(f"gemlet: {whose} are {each.origin}, not measured here: {each.note}", err=True)
    theirs = plan_files.load_glet(glet)
    for note in theirs.notes:
        click.echo(f"gemlet: {note}", err=True)
    there = next(count for count in (given, theirs.gpus, service.gpus) if count is not None)
    changes = theirs.changes | {key: value for key, value in changed.items() if value is not None}
    if there > MANY_GPUS:
        click.echo(f"gemlet: planning for {there} GPUs, which may take minutes", err=True)
    made = plan(
        known,
        service.demands,
        inventory(known, range(there), memory / MIB if memory else theirs.memory_mib),
        plan_files.load_plan(previous, known, service.demands) if previous else None,
        msgspec.structs.replace(service.options, **changes),
        policy=policy or theirs.policy or service.policy,
    )
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(made), indent=1).decode())
    if isinstance(made, Infeasible):
        messages.error(f"no plan: {'; '.join(made.why)}", _advice(made))
        return 1
    if svg:
        text_file.write_text(svg, picture.svg(made))
    if output == "glet":
        if any(abs(100 * gpu_let.sm - round(100 * gpu_let.sm)) > 1e-6 for gpu in made.gpus for gpu_let in gpu.gpu_lets):
            click.echo("gemlet: shares were rounded down to whole per cent; use --grid 20 to avoid that", err=True)
        click.echo(glet_files.render_model_list(made), nl=False)
    elif output == "table":
        click.echo("\n".join(_text(made, why=why)))
    return 0


def _given(demands: Path | None) -> Path:
    if demands is None:
        context = click.get_current_context()
        argument = next(each for each in context.command.params if each.name == "demands")
        raise click.MissingParameter(ctx=context, param=argument)
    return demands


def _list_policies(output: str) -> int:
    from gemlet.monitor.tables import table
    from gemlet.serve.plan.policies import POLICIES

    if output not in ("table", "json"):
        raise UsageError(f"policies are not a {output}", hint="leave out -o, or write -o json")
    if output == "json":
        listed = [{"name": name, "about": entry.line} for name, entry in POLICIES.items()]
        click.echo(json.dumps({"schema": 1, "policies": listed}, indent=1))
    else:
        rows = [(name, entry.line) for name, entry in POLICIES.items()]
        click.echo("\n".join(table(("policy", "what it does"), rows)))
    return 0


def _advice(made: Infeasible) -> str:
    if made.needed:
        return f"give --gpus {made.needed}, relax an SLO, or try another policy (`gemlet plan --policies`)"
    return "relax an SLO, add GPUs, or try another policy (`gemlet plan --policies`)"


def _text(made: Plan, *, why: bool) -> list[str]:
    from gemlet.config.quantities import format_share
    from gemlet.monitor.tables import table
    from gemlet.serve.plan import picture

    header = ("GPU", "SM", "model", "rate/s", "of", "batch", "latency", "worst", "SLO", "slower")
    rows = [
        (
            str(gpu.index),
            format_share(gpu_let.sm) if not number else "",
            task.model,
            f"{task.rate:.6g}",
            f"{task.capacity:.6g}",
            str(task.batch),
            f"{task.latency_ms:.3g} ms",
            f"{task.worst_ms:.3g} ms",
            f"{task.slo_ms:g} ms",
            f"{task.slowdown - 1:.1%}",
        )
        for gpu in made.gpus
        for gpu_let in gpu.gpu_lets
        for number, task in enumerate(gpu_let.tasks)
    ]
    lines = [picture.title(made), "", *picture.lines(made), ""]
    lines += table(header, rows, right=frozenset(header) - {"model"})
    if why:
        for gpu in made.gpus:
            for gpu_let in gpu.gpu_lets:
                lines += ["", f"GPU {gpu.index}, {picture.names(gpu_let)}:", *(f"  {reason}" for reason in gpu_let.why)]
    return lines + [f"note: {note}" for note in made.notes]
