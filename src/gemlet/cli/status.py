"""`gemlet status`: devices, groups and clients, once or repeatedly."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import options, overview
from gemlet.errors import UsageError
from gemlet.model import GROUP_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.daemon.status import DeviceStatus, GroupStatus, Status

# Columns of the CSV, in the order that scripts rely on: what was added later stands at the end.
COLUMNS: dict[str, Callable[[DeviceStatus, GroupStatus], object]] = {
    "device": lambda d, g: d.index,
    "uuid": lambda d, g: d.uuid,
    "group": lambda d, g: g.name,
    "min": lambda d, g: g.min,
    "max": lambda d, g: g.max,
    "priority": lambda d, g: g.priority,
    "share_1s": lambda d, g: _rounded(g.share.get("1s")),
    "share_10s": lambda d, g: _rounded(g.share.get("10s")),
    "share_60s": lambda d, g: _rounded(g.share.get("60s")),
    "target": lambda d, g: _rounded(g.target),
    "memory_used": lambda d, g: g.memory_used,
    "memory_limit": lambda d, g: g.memory_limit,
    "clients": lambda d, g: len(g.clients),
    "reason": lambda d, g: g.reason,
    "sm": lambda d, g: g.sm,
    "sm_in_force": lambda d, g: str(g.sm_in_force).lower(),
}
OTHER_FIELDS = [name for name, field in GROUP_FIELDS.items() if field.time and name not in COLUMNS]


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

    while True:
        document = overview.read_document(socket, simulate=simulate)
        if output == "json":
            click.echo(json.dumps(document, indent=None if watch else 2))
        else:
            status = decode_status(document)
            shown = rows(status) if output == "csv" else text(status)
            if watch and output == "table" and sys.stdout.isatty():
                click.clear()
            click.echo(shown, nl=False)
            if status.daemon is None and not watch:
                overview.say_next(status, shown=output == "table")
        if not watch:
            return
        time.sleep(1.0)


def _node(socket: str | None, output: str, watch: bool) -> None:
    from gemlet.cli.kube import SHARES_DIRECTORY_ENV, STATE_DIRECTORY, show_shares

    if watch or output == "csv":
        given = "--watch" if watch else "-o csv"
        raise UsageError(f"--node and {given} do not go together", hint="leave out one of the two")
    show_shares(Path(os.environ.get(SHARES_DIRECTORY_ENV, STATE_DIRECTORY)), output, socket)


def rows(status: Status) -> str:
    """One line per device and group, after a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *OTHER_FIELDS])
    for device in status.devices:
        for group in device.groups:
            cells = [value(device, group) for value in COLUMNS.values()]
            writer.writerow(cells + [getattr(group, name) for name in OTHER_FIELDS])
    return text.getvalue()


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
