"""`gemlet history`: what a group, or the devices, got: from the daemon's record."""

from __future__ import annotations

import json
import shutil
import sys

import click

from gemlet import typed_command
from gemlet.cli import messages, options
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import Refused

PATIENCE = 60.0  # seconds: 90 days of 50 groups take two
POINTS = {"table": 24, "csv": 1000, "json": 1000}


@click.command()
@click.argument("group", type=options.GroupName(), metavar="[GROUP]", required=False)
@click.option(
    "--since",
    type=options.Duration(),
    default="1h",
    show_default=True,
    help="How far back: 90s, 2h, 7d; at most 90 days",
)
@click.option("--until", type=options.Duration(), default="0s", show_default=True, help="How long ago the period ends")
@click.option("--points", type=options.Whole(1, 4000), help="Most intervals; default: as many as fit")
@options.output("table", "plot", "csv", "json")
@options.simulate
@click.pass_obj
def command(
    socket: str | None,
    *,
    group: str | None,
    since: float,
    until: float,
    points: int | None,
    output: str,
    simulate: bool,
) -> None:
    """Show what a group got, or without GROUP the devices.

    \b
    gemlet history train-1 --since 2h
    gemlet history train-1 --since 7d -o plot
    gemlet history --since 1d -o csv
    """
    from gemlet.monitor import history
    from gemlet.monitor.reader import decode_recorded, decode_status

    if until >= since:
        raise click.UsageError("--until is not after --since: expected a shorter time, such as --since 2h --until 1h")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        daemon.patience(PATIENCE)
        document = daemon.call(
            "recorded", group=group or "", since=since, until=until, points=points or POINTS.get(output, 4 * width)
        )
        recorded = decode_recorded(document)
        if group and not recorded.series:
            known = {each.name for each in decode_status(daemon.call("status")).groups}
            if group not in known:
                names = typed_command.command("status", simulated=simulate)
                raise Refused(
                    f"there is no group {group}, nor anything recorded of it in that time",
                    hint=f"look further back with --since, or see the names with `{names}`",
                )
    if recorded.kept is not None:
        messages.warning(f"no history is recorded now: {recorded.kept}", "read the daemon's log")
    if output == "json":
        click.echo(json.dumps(document))
    elif output == "csv":
        click.echo(history.rows(recorded), nl=False)
    elif not recorded.series:
        click.echo(f"(nothing is recorded of {group or 'the devices'} in that time)", err=True)
    else:
        click.echo(history.plot(recorded, width=width) if output == "plot" else history.text(recorded), nl=False)
