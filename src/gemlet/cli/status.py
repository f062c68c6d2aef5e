"""`gemlet status`: devices, groups and clients, once or again and again."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import options
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.daemon.status import Status

COLUMNS = (
    "device,uuid,group,min,max,priority,share_1s,share_10s,share_60s,target,memory_used,memory_limit,clients,reason,"
    "sm,sm_in_force"
)


@click.command()
@options.output("table", "json", "csv")
@click.option("-w", "--watch", is_flag=True, help="Print again every second, until interrupted")
@click.option("--node", is_flag=True, help="The shares of this Kubernetes node, by pod")
@options.simulate
@click.pass_obj
def command(socket: str | None, output: str, watch: bool, node: bool, simulate: bool) -> None:
    """Show devices, groups and clients.

    \b
    gemlet status
    gemlet status -w
    gemlet status -o json | jq '.devices[].groups[].share'
    gemlet status --node
    """
    if node:
        _node(socket, output, watch)
        return
    from gemlet.monitor.reader import decode_status
    from gemlet.monitor.tables import text

    with connect(address.candidates(socket, simulate=simulate)) as daemon:
        while True:
            document = daemon.call("status")
            if output == "json":
                click.echo(json.dumps(document, indent=None if watch else 2))
            else:
                status = decode_status(document)
                shown = rows(status) if output == "csv" else text(status)
                if watch and output == "table" and sys.stdout.isatty():
                    click.clear()
                click.echo(shown, nl=False)
            if not watch:
                return
            time.sleep(1.0)


def _node(socket: str | None, output: str, watch: bool) -> None:
    from gemlet.cli.kube import STATE_DIRECTORY, show_shares

    if watch or output == "csv":
        given = "--watch" if watch else "-o csv"
        raise UsageError(f"--node and {given} do not go together", hint="leave out one of the two")
    show_shares(Path(STATE_DIRECTORY), output, socket)


def rows(status: Status) -> str:
    """One line per device and group, after a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS.split(","))
    for device in status.devices:
        for group in device.groups:
            shares = [group.share.get(window) for window in ("1s", "10s", "60s")]
            writer.writerow(
                [device.index, device.uuid, group.name, group.min, group.max, group.priority]
                + ["" if share is None else round(share, 4) for share in shares]
                + [round(group.target, 4), group.memory_used, group.memory_limit, len(group.clients), group.reason]
                + [group.sm, str(group.sm_in_force).lower()]
            )
    return text.getvalue()
