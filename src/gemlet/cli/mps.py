"""`gemlet mps`: programs side by side under NVIDIA's Multi-Process Service. Only these verbs start or stop it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from gemlet import typed_command
from gemlet.cli import environment, options
from gemlet.daemon import address, autostart
from gemlet.daemon.connection import Connection, connect
from gemlet.errors import DaemonUnreachable, UsageError

if TYPE_CHECKING:
    from gemlet.daemon.mps_state import MpsStatus

ANSWER_SECONDS = 60.0  # longer than the daemon itself waits before it gives up


@click.group()
def command() -> None:
    """Run programs side by side under NVIDIA MPS, each on a fraction of the multiprocessors.

    \b
    gemlet mps start
    gemlet run --sm 30% -- python serve.py
    gemlet mps status
    gemlet mps stop
    """


@command.command(short_help="Start MPS.")
@click.option("--force", is_flag=True, help="Start even beside another MPS control daemon")
@options.simulate
@click.pass_obj
def start(socket: str | None, *, force: bool, simulate: bool) -> None:
    """Start MPS; programs that `gemlet run` starts from then on run under it."""
    endpoints = address.candidates(socket, simulate=simulate)
    with autostart.find_or_start(endpoints) as daemon:
        daemon.patience(ANSWER_SECONDS)
        program = os.environ.get("GEMLET_MPS_CONTROL") or None
        answer = daemon.call("mps_start", program=program, places=_places(), force=force)
    for warning in answer["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    state = "is on" if answer["changed"] else "is on already"
    what = "MPS of the simulated machine" if answer["mps"]["simulated"] else "MPS"
    click.echo(f"{what} {state}: control daemon {answer['mps']['pid']}, pipes in {_pipes(answer)}", err=True)


@command.command(short_help="Stop MPS, unless programs use it.")
@click.option(
    "-t",
    "--timeout",
    type=options.Whole(1, 86400),
    metavar="SECONDS",
    help="Wait this long for programs, then end them",
)
@click.option("--force", is_flag=True, help="End programs that use it at once")
@options.simulate
@click.pass_obj
def stop(socket: str | None, *, timeout: int | None, force: bool, simulate: bool) -> None:
    """Stop MPS. Refused while programs use it, unless -t or --force says what to do with them."""
    if timeout is not None and force:
        raise UsageError("-t and --force do not go together", hint="give one of them")
    with _connect(socket, simulate) as daemon:
        daemon.patience(ANSWER_SECONDS + (timeout or 0))
        answer = daemon.call("mps_stop", seconds=timeout, force=force)
    click.echo("MPS is off" if answer["changed"] else "MPS is off already", err=True)


@command.command(short_help="Show whether MPS runs, and which programs use it.")
@options.output("text", "json")
@options.simulate
@click.pass_obj
def status(socket: str | None, *, output: str, simulate: bool) -> None:
    """Show whether MPS runs, and which programs use it."""
    from gemlet.monitor.reader import decode_mps
    from gemlet.monitor.tables import mps_text

    with _connect(socket, simulate) as daemon:
        daemon.patience(ANSWER_SECONDS)
        document = daemon.call("mps", places=_places())
    if output == "json":
        click.echo(json.dumps(document, indent=2))
        return
    mps: MpsStatus = decode_mps(document)
    click.echo(mps_text(mps, simulated=document["simulated"]), nl=False)


def _connect(socket: str | None, simulate: bool) -> Connection:
    try:
        return connect(address.candidates(socket, simulate=simulate))
    except DaemonUnreachable as error:
        start = typed_command.command("mps", "start", simulated=simulate)
        raise DaemonUnreachable(f"gemlet runs no MPS: {error.message}", hint=f"`{start}` starts both") from None


def _places() -> list[str]:
    # Where programs of this shell would look, unless that is gemlet's own directory.
    named = environment.own_pipe_directory(os.environ)
    return [named] if named else []


def _pipes(answer: dict[str, Any]) -> str:
    return str(answer["mps"]["pipe_directory"])
