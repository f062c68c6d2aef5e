"""`gemlet set`: changes a group while its programs run."""

from __future__ import annotations

from typing import Any

import click

from gemlet.cli import options, words
from gemlet.config.share import format_share
from gemlet.config.size import format_size
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import UsageError


@click.command()
@click.argument("group", type=options.GroupName(), metavar="GROUP")
@options.minimum("SET")
@options.maximum("SET")
@click.option("--memory", type=options.SizeOrNone(), help="Limit of device memory; `none` lifts it")
@click.option("--resident", type=options.SizeOrNone(), help="Of it on the device at a time; `none` lifts it")
@click.option("--priority", type=click.Choice(options.PRIORITIES), help="Class of the group")
@click.option(
    "--weight",
    type=click.FloatRange(min=0, max=1e6, min_open=True),
    metavar="NUMBER",
    help="Part of the time above the minima: 2 is twice that of others",
)
@options.multiprocessors("SET")
@options.workload
@click.option("--users", metavar="A,B", help="Users who may join; empty for whoever reaches the daemon")
@click.option("--save", is_flag=True, help="Also write the daemon's configuration file")
@options.simulate
@click.pass_obj
def command(
    socket: str | None,
    *,
    group: str,
    minimum: float | None,
    maximum: float | None,
    memory: object,
    resident: object,
    priority: str | None,
    weight: float | None,
    sm: float | None,
    workload: str | None,
    users: str | None,
    save: bool,
    simulate: bool,
) -> None:
    """Change a group while it runs. What is not named stays as it is.

    \b
    gemlet set train-1 --max 50%
    gemlet set team --min 0.3 --memory 12GiB --save
    gemlet set team --users ana,luis
    """
    named = {"min": minimum, "max": maximum, "memory": memory, "resident": resident, "priority": priority}
    named |= {"weight": weight, "sm": sm, "workload": workload}
    limits: dict[str, object] = {name: value for name, value in named.items() if value is not None}
    if users is not None:
        limits["users"] = [user.strip() for user in users.split(",") if user.strip()]
    if not limits:
        raise UsageError(f"nothing to change in group {group}", hint="give --min, --max, --memory, --priority, ...")
    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        simulated = daemon.endpoint.kind == "simulated"
        changed = daemon.call("set", group=group, limits=limits, save=save)
    for remark in changed.get("warnings", ()):  # a daemon of an older version has none
        words.warning(remark["message"], remark["hint"])
    granted = changed["granted"]
    memory_text = "no memory limit" if granted["memory"] is None else f"{format_size(granted['memory'])} of memory"
    if granted.get("resident") is not None:
        memory_text += f", {format_size(granted['resident'])} of it on the device at a time"
    click.echo(
        f"group {group}: {format_share(granted['min'])} guaranteed, up to {format_share(granted['max'])}, "
        f"{memory_text}, priority {granted['priority']}, weight {granted['weight']:g}"
        + (f", workload {granted['workload']}" if workload is not None else "")
        + (f", users {', '.join(granted['users']) or 'all'}" if users is not None else ""),
        err=True,
    )
    if sm is not None:
        click.echo(_fraction(changed, " --simulate" if simulated else ""), err=True)
    if changed["saved"]:
        click.echo(f"saved to {changed['saved']}", err=True)


def _fraction(changed: dict[str, Any], simulate: str) -> str:
    fraction = f"{format_share(changed['granted']['sm'])} of the multiprocessors"
    text = (
        f"{fraction}, for processes that `gemlet run` starts from now on: it is fixed when a program makes its context"
    )
    if changed["granted"]["sm"] < 1 and changed["mps"] != "on":
        text += f"; without MPS (`gemlet mps start{simulate}`) it is not in force, and programs take turns"
    return text
