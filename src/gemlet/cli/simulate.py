"""``gemlet simulate``: what a workload's groups would get, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemlet.cli import completion, example, options
from gemlet.errors import InvalidValue, UsageError

if TYPE_CHECKING:
    from gemlet.simulate.report import Report


def _table(report: Report) -> str:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else form.format(value)

    header = (
        "group",
        "speed",
        "slowest",
        "used",
        "charged",
        "worst second",
        "peak",
        "grants",
        "wait p50",
        "wait max",
        "jobs",
        "p50",
        "p99",
    )
    rows = [
        (
            group.name,
            number(group.speed, "{:.1%}"),
            number(group.slowest, "{:.1%}"),
            f"{group.used:.1%}",
            f"{group.charged:.1%}",
            number(group.shortfall, "-{:.1%}").replace("-0.0%", "0.0%"),
            f"{group.peak:.1%}",
            str(group.grants),
            number(group.wait_p50, "{:.2f} ms"),
            number(group.wait_max, "{:.2f} ms"),
            str(group.jobs) if group.jobs else "-",
            number(group.latency_p50, "{:.2f} ms"),
            number(group.latency_p99, "{:.2f} ms"),
        )
        for group in report.groups
    ]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    title = (
        f"simulated, virtual time: {report.seconds:g} s, policy {report.policy}, "
        f"device busy {report.busy:.1%}, {report.handovers} switches between programs; "
        "speed is against the same programs alone on the simulated device"
    )
    return "\n".join([title, *lines])


@click.command("simulate", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workload", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--serve",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Simulate serving a demand file instead.",
)
@click.option("--peak", is_flag=True, help="With --serve: also find the highest rates with 99% of the replies in time.")
@click.option(
    "--replan", is_flag=True, help="With --serve: the plan follows the rates, starting from those of the first second."
)
@click.option(
    "--plan",
    "given",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --serve: use this plan (JSON, or glet's ModelList.txt).",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="With --serve: a file, or h200 for measured ones; default: the demand file's, else modelled.",
)
@click.option(
    "--gpus",
    type=options.Gpus(),
    metavar="N",
    help="With --serve: devices in place of the file's; of several kinds: h200=2,h100.json=1.",
)
@click.option(
    "--spread",
    type=click.Choice(["profile", "measured"]),
    default="profile",
    help="With --serve: how much batches beside neighbours and their ways differ: as the profile says of models alone,"
    " or as measured on an H200.",
)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=completion.all_policies,
    help="Instead of the file's policy: fair, gemini, fifo, none (hardware alone); one of `gemlet plan`.",
)
@click.option("--duration", metavar="TIME", help="Instead of the workload's duration: 30s, 500ms.")
@example.option("simulate/examples/shared_workstation.toml", "gemlet simulate")
@options.output("table", "json")
def command(
    workload: Path | None,
    *,
    serve: Path | None,
    given: Path | None,
    peak: bool,
    replan: bool,
    profiles: Path | None,
    gpus: Any,
    spread: str,
    policy: str | None,
    duration: str | None,
    output: str,
) -> None:
    """Show what the groups of WORKLOAD (a TOML file) would get of one device.

    \b
    gemlet simulate workload.toml
    gemlet simulate workload.toml --policy gemini --duration 5s
    gemlet simulate --serve demands.toml --peak
    gemlet simulate --serve demands.toml --replan

    The arbiter is the real one; device and programs are modelled, and no GPU is used. With --serve it plans for the
    models of a demand file (docs/serving/plan.md) and shows how they would be served.
    """
    if (workload is None) == (serve is None):
        raise UsageError("name one file: a workload, or --serve and a demand file", hint="see `gemlet simulate -h`")
    length = _length(duration)
    if workload is not None:
        if peak or replan or spread != "profile" or any(each is not None for each in (given, profiles, gpus)):
            raise UsageError(
                "--gpus, --peak, --plan, --profiles, --replan and --spread go with --serve",
                hint="leave them out, or give --serve and a demand file",
            )
        _share(workload, policy=policy, length=length, output=output)
        return
    assert serve is not None
    if replan and (peak or given is not None):
        raise UsageError(
            "--replan makes its own plans: --peak and --plan do not go with it", hint="leave one or the other out"
        )
    from gemlet.cli import simulate_replanning, simulate_serving
    from gemlet.config.quantities import SECOND
    from gemlet.simulate.serving import simulator

    seconds = length / SECOND if length is not None else None
    differ = simulator.MEASURED if spread == "measured" else simulator.EVEN
    if replan:
        simulate_replanning.run(
            serve, profiles=profiles, gpus=gpus, spread=differ, policy=policy, seconds=seconds, output=output
        )
    else:
        simulate_serving.run(
            serve, given=given, profiles=profiles, gpus=gpus, spread=differ, policy=policy, seconds=seconds,
            find_peak=peak, output=output,
        )  # fmt: skip


def _length(duration: str | None) -> int | None:
    from gemlet.config.quantities import parse_duration

    try:
        length = parse_duration(duration) if duration is not None else None
    except InvalidValue as error:
        raise UsageError(f"--duration: {error}", hint=error.hint) from error
    if length == 0:
        raise UsageError(
            f"--duration: {duration} is not a valid length: expected more than 0", hint="write --duration 5s"
        )
    return length


def _share(workload: Path, *, policy: str | None, length: int | None, output: str) -> None:
    """What the groups of a workload get of one device."""
    import dataclasses
    import json

    from gemlet.model import POLICIES
    from gemlet.simulate.engine import NO_ARBITER, Engine, run_alone
    from gemlet.simulate.report import summarize
    from gemlet.simulate.workload import load

    spec = load(workload)
    if policy is not None:
        if policy not in {*POLICIES, NO_ARBITER}:
            raise UsageError(
                f"unknown policy {policy!r} of the arbiter", hint=f"choose one of {', '.join([*POLICIES, NO_ARBITER])}"
            )
        spec = dataclasses.replace(spec, policy=policy)
    if length is not None:
        spec = dataclasses.replace(spec, duration=length)
    try:
        engine = Engine(spec)
    except ValueError as error:
        raise UsageError(f"{workload}: {error}") from error
    outcome = engine.run()
    alone = [run_alone(spec, client.number) for client in outcome.clients]
    report = summarize(outcome, spec.policy, alone)
    click.echo(json.dumps(report.as_dict(), indent=2) if output == "json" else _table(report))
