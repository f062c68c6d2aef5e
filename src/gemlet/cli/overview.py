"""What there is to see, with or without a daemon, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemlet.cli import messages
from gemlet.daemon import address
from gemlet.daemon.connection import accepts, connect
from gemlet.errors import DaemonUnreachable

if TYPE_CHECKING:
    from gemlet.daemon.status import Status

FIRST = {
    "gemlet run --min 30% -- python train.py": "a program with at least 30% of a GPU; starts a daemon",
    "gemlet top": "who uses the GPUs, live",
    "gemlet demo": "three programs share one GPU, measured",
    "gemlet -h": "all commands",
}
WITHOUT_GPU = {
    "gemlet demo": "three programs share a simulated device, measured",
    "gemlet doctor": "checks driver, hook, configuration and daemon",
    "gemlet -h": "all commands",
}
SIMULATED = {"gemlet top --simulate": "the simulated machine, whose daemon runs"}


def read_document(socket: str | None, *, simulate: bool) -> dict[str, Any]:
    """The status document of the daemon, or without one that of the driver, whose ``daemon`` is None.

    Raises `DaemonUnreachable` only for a daemon that was asked for by name, and for the simulated machine's.
    """
    try:
        with connect(address.candidates(socket, simulate=simulate)) as daemon:
            document: dict[str, Any] = daemon.call("status")
            return document
    except DaemonUnreachable as error:
        if socket is not None or simulate:
            raise
        import msgspec

        from gemlet.monitor import without_daemon

        found: dict[str, Any] = msgspec.to_builtins(without_daemon.read_status(error))
        return found


def read_status(socket: str | None, *, simulate: bool) -> Status:
    """As `read_document`, as structs."""
    from gemlet.monitor.reader import decode_status

    return decode_status(read_document(socket, simulate=simulate))


def show(socket: str | None) -> None:
    """What `gemlet` alone prints on a terminal."""
    from gemlet.monitor.tables import text

    status = read_status(socket, simulate=False)
    click.echo(text(status), nl=False)
    say_next(status)


def say_next(status: Status, *, shown: bool = True) -> None:
    """What to type next, on stderr; and why there is little, unless that is ``shown`` already."""
    if not shown:
        messages.warning(status.problem or "no daemon", None)
    steps = FIRST if status.devices else WITHOUT_GPU
    if accepts(address.simulated()):
        steps = SIMULATED | steps
    width = max(map(len, steps))
    lines = [f"{step:<{width}}   # {meaning}" for step, meaning in steps.items()]
    click.echo("\nnext: " + "\n      ".join(lines), err=True)
