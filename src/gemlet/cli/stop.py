"""`gemlet stop`."""

from __future__ import annotations

import time

import click

from gemlet.cli import options
from gemlet.daemon import address
from gemlet.daemon.connection import Connection, connect, no_daemon
from gemlet.errors import DaemonError, DaemonUnreachable

STOP_SECONDS = 5.0


@click.command()
@options.simulate
@click.pass_obj
def command(socket: str | None, simulate: bool) -> None:
    """Stop the daemon; programs run on, within their limits of memory.

    \b
    gemlet stop
    gemlet stop --simulate
    """
    endpoints = address.candidates(socket, simulate=simulate)
    if socket is None and not simulate:
        endpoints.reverse()  # one's own daemon before the system's
    try:
        daemon = connect(endpoints)
    except DaemonUnreachable:
        own = no_daemon(endpoints[0])
        hint = own.hint if own.hint and "add --simulate" in own.hint else None  # and none that says how to start one
        raise DaemonUnreachable(f"nothing to stop: {own.message}", hint=hint) from None
    with daemon:
        endpoint = daemon.endpoint
        pid = daemon.call("shutdown")["pid"]
    give_up = time.monotonic() + STOP_SECONDS
    while time.monotonic() < give_up:
        try:
            Connection(endpoint).close()
        except DaemonUnreachable:
            click.echo(f"stopped the daemon in {endpoint.directory} (pid {pid})", err=True)
            return
        time.sleep(0.02)
    raise DaemonError(
        f"the daemon (pid {pid}) does not stop", hint=f"read its log, {endpoint.log}, or end it with `kill {pid}`"
    )
