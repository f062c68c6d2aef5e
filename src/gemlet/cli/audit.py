"""`gemlet audit`: programs that use a device outside gemlet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gemlet.cli import messages, options
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import DaemonUnreachable, DeviceError

if TYPE_CHECKING:
    from gemlet.daemon.audit import Outsider

ANSWER_SECONDS = 30.0  # the driver is asked first
FOUND = 1


@click.command()
@options.output("text", "json")
@options.simulate
@click.pass_obj
def command(socket: str | None, output: str, simulate: bool) -> int:
    """List programs that use a GPU outside gemlet: processes that NVML shows and that are not clients of the daemon.

    \b
    gemlet audit
    gemlet audit -o json | jq '.outside[].pid'

    Exits with 1 if there are any that do more than draw. [audit] of the configuration says what the system's
    daemon does about them.
    """
    from gemlet.monitor.reader import decode_audit
    from gemlet.monitor.tables import outside_lines

    try:
        with connect(address.candidates(socket, simulate=simulate)) as daemon:
            daemon.patience(ANSWER_SECONDS)
            document = daemon.call("audit")
        outside = decode_audit(document)
    except DaemonUnreachable as error:
        if socket is not None or simulate:
            raise
        outside = _without_daemon()
        document = _document(outside)
        messages.warning(f"{error.message}: every program is outside", error.hint)
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("\n".join(outside_lines(outside) or ["(no program uses a device outside gemlet)"]))
    return FOUND if any(not who.graphics for who in outside) else 0


def _without_daemon() -> list[Outsider]:
    from gemlet.daemon.processes import sees_the_drivers_pids
    from gemlet.devices import nvml
    from gemlet.monitor.without_daemon import programs

    if not sees_the_drivers_pids():
        raise DeviceError(
            "the driver's pids mean nothing in this container: they are the machine's",
            hint="run `gemlet audit` on the machine itself",
        )
    return programs(nvml.device_inventory())


def _document(outside: list[Outsider]) -> dict[str, Any]:
    import msgspec

    from gemlet.daemon import protocol

    found = msgspec.to_builtins(outside)
    return {"schema": protocol.AUDIT_SCHEMA, "simulated": False, "policy": None, "outside": found}
