"""`gemlet set`: changes a group while its programs run."""

from __future__ import annotations

from typing import Any

import click

from gemlet import typed_command
from gemlet.cli import messages, options
from gemlet.config.group_fields import phrases
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import UsageError
from gemlet.model import GROUP_FIELDS

ALWAYS = {"min", "max", "weight", "priority", "memory"}  # also those at their defaults are said


@click.command()
@click.argument("group", type=options.GroupName(), metavar="GROUP")
@options.limits("set")
@click.option("--save", is_flag=True, help="Also write the daemon's configuration file")
@options.simulate
@click.pass_obj
def command(socket: str | None, *, group: str, limits: dict[str, object], save: bool, simulate: bool) -> None:
    """Change a group while it runs. Limits that are not named stay as they are.

    \b
    gemlet set train-1 --max 50%
    gemlet set team --min 0.3 --memory 12GiB --save
    gemlet set team --users ana,luis
    """
    if not limits:
        hint = f"give one of {', '.join(f'--{name}' for name in GROUP_FIELDS)}"
        raise UsageError(f"nothing to change in group {group}: expected an option", hint=hint)
    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        simulated = daemon.endpoint.kind == "simulated"
        changed = daemon.call("set", group=group, limits=limits, save=save)
    for warning in changed.get("warnings", ()):  # a daemon of an older version has none
        messages.warning(warning["message"], warning["hint"])
    said = list(phrases(changed["granted"], also=ALWAYS | set(limits)))
    click.echo(f"group {group}: {', '.join(phrase for field, phrase in said if field.column.live)}", err=True)
    for field, phrase in said:
        if not field.column.live and field.name in limits:
            click.echo(_from_now_on(phrase) + _without_mps(field.name, changed, simulated=simulated), err=True)
    if changed["saved"]:
        click.echo(f"saved to {changed['saved']}", err=True)


def _from_now_on(phrase: str) -> str:
    return f"{phrase}, for processes that `gemlet run` starts from now on: it is fixed when a program makes its context"


def _without_mps(name: str, changed: dict[str, Any], *, simulated: bool) -> str:
    if name != "sm" or changed["granted"]["sm"] >= 1 or changed["mps"] == "on":
        return ""
    start = typed_command.command("mps", "start", simulated=simulated)
    return f"; without MPS (`{start}`) it is not in force, and programs take turns"
