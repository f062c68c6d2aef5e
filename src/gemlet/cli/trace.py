"""`gemlet trace`: who ran and who waited on a device in the last seconds, for Perfetto."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import messages, options
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from gemlet.daemon.connection import Connection
    from gemlet.daemon.tracing import Traced

LONGEST_S = 3600.0
LOOK_S = 2.0  # between two looks into the daemon's ring, which keeps some seconds of a very busy machine


@click.command()
@click.argument("group", type=options.GroupName(), metavar="GROUP")
@click.argument("length", type=options.Duration(), default="10s", metavar="[TIME]")
@click.option(
    "-o", "--output", metavar="FILE", default="trace.json", show_default=True, help="File to write; - for stdout"
)
@click.option("--next", "coming", is_flag=True, help="Record the next TIME instead of the last")
@options.simulate
@click.pass_obj
def command(socket: str | None, *, group: str, length: float, output: str, coming: bool, simulate: bool) -> None:
    """Write a trace of what ran and waited on GROUP's devices in the last TIME (10s), for Perfetto.

    \b
    gemlet trace train-1 10s -o trace.json
    gemlet trace train-1 30s --next
    """
    from gemlet.monitor import trace
    from gemlet.monitor.reader import read_traced

    if not 0 < length <= LONGEST_S:
        raise click.UsageError(f"TIME is {length:g} s: expected an hour or less, such as 10s")

    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        traced = _coming(daemon, group, length) if coming else read_traced(daemon, group, seconds=length)
    document = json.dumps(trace.perfetto(traced), separators=(",", ":"))
    if output == "-":
        click.echo(document)
    else:
        try:
            Path(output).write_text(document + "\n")
        except OSError as error:
            raise GemletError(
                f"{output} cannot be written: {error.strerror}", hint="name a file with -o that you may write"
            ) from None
        click.echo(trace.text(traced), nl=False)
        click.echo(f"wrote {len(traced.steps)} steps to {output}: open it at https://ui.perfetto.dev", err=True)
    if traced.lost:
        messages.warning(
            "the daemon has forgotten a part of that time: so much happened since",
            "ask for a shorter time, or record it with --next",
        )


def _coming(daemon: Connection, group: str, length: float) -> Traced:
    import msgspec

    from gemlet.monitor.reader import read_traced

    first = part = read_traced(daemon, group, seconds=0.0)
    end = time.monotonic() + length
    clients, steps, lost = {c.client: c for c in first.clients}, [], False
    while (left := end - time.monotonic()) > 0:
        if sys.stderr.isatty():
            click.echo(f"\rrecording: {left:.0f} s to go ", nl=False, err=True)
        time.sleep(min(left, LOOK_S))
        part = read_traced(daemon, group, seconds=0.0, after=part.next)
        clients |= {client.client: client for client in part.clients}
        steps += part.steps
        lost = lost or part.lost
    if sys.stderr.isatty():
        click.echo("\r" + " " * 30 + "\r", nl=False, err=True)
    return msgspec.structs.replace(
        part, begin_ns=first.begin_ns, clients=list(clients.values()), steps=steps, lost=lost
    )
