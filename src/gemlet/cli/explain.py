"""`gemlet explain`: why a group runs or waits."""

from __future__ import annotations

import json

import click

from gemlet.cli import options
from gemlet.daemon import address, protocol
from gemlet.daemon.connection import connect, other_version


@click.command()
@click.argument("group", type=options.GroupName(), metavar="GROUP")
@options.output("text", "json")
@options.simulate
@click.pass_obj
def command(socket: str | None, group: str, output: str, simulate: bool) -> None:
    """Say why a group runs or waits, by the policy's own reason.

    \b
    gemlet explain train-1
    """
    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        explanation = daemon.call("explain", group=group)
        if explanation.get("schema") != protocol.EXPLAIN_SCHEMA:
            raise other_version(f"schema {explanation.get('schema')}, not {protocol.EXPLAIN_SCHEMA}", explanation)
    if output == "json":
        click.echo(json.dumps(explanation, indent=2))
        return
    click.echo("\n".join(explanation["lines"]))
    if explanation["hint"]:
        click.echo(f"\nhint: {explanation['hint']}", err=True)
