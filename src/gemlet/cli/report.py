"""`gemlet report`: what a group used, waited for, and what would have helped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gemlet import typed_command
from gemlet.cli import options
from gemlet.cli.history import PATIENCE
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import Refused

if TYPE_CHECKING:
    from gemlet.daemon.connection import Connection
    from gemlet.monitor.report import Report

POINTS = 3600  # an hour by seconds


@click.command()
@click.argument("group", type=options.GroupName(), metavar="GROUP")
@click.option("--since", type=options.Duration(), default="1h", show_default=True, help="How far back: 90s, 2h, 7d")
@options.output("text", "json")
@options.simulate
@click.pass_obj
def command(socket: str | None, *, group: str, since: float, output: str, simulate: bool) -> None:
    """Say what a group used, what it waited for, and what would have helped.

    \b
    gemlet report train-1
    gemlet report train-1 --since 7d -o json
    """
    import msgspec

    from gemlet.monitor import report

    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        found = ask(daemon, group, since)
        if found is None:
            further = typed_command.on_group("report", group, "--since", "7d", simulated=simulate)
            raise Refused(
                f"group {group} had no program in that time",
                hint=f"look further back with `{further}`, "
                f"or see the names with `{typed_command.command('status', simulated=simulate)}`",
            )
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        click.echo(f"{group}{' (simulated)' if found.simulated else ''}: {report.line(found)}")


def ask(daemon: Connection, group: str, since: float, *, patience: float = PATIENCE) -> Report | None:
    """The report of the last ``since`` seconds. Raises `GemletError`."""
    from gemlet.monitor import report
    from gemlet.monitor.reader import decode_recorded, decode_status

    daemon.patience(patience)
    document = daemon.call("recorded", group=group, since=since, until=0.0, points=POINTS)
    free = report.left_for(group, decode_status(daemon.call("status")).groups)
    return report.report(decode_recorded(document), group, free=free)
