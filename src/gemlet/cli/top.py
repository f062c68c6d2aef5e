"""`gemlet top`: the live view, or the same once as text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import options, overview
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.daemon.status import Status


@click.command()
@click.option("--once", is_flag=True, help="Print once as text, as `gemlet status` does")
@click.option("--screenshot", type=click.Path(path_type=Path, dir_okay=False), help="Write the screen to an SVG file")
@options.simulate
@click.pass_obj
def command(socket: str | None, once: bool, screenshot: Path | None, simulate: bool) -> None:
    """Watch devices, groups and clients live.

    \b
    gemlet top
    gemlet top --once
    gemlet top --screenshot top.svg

    Keys: Enter folds a group, k ends a program, / filters, s sorts, space pauses, ? explains, q quits.
    """
    if once and screenshot is not None:
        raise UsageError("--once and --screenshot do not go together", hint="leave out one of the two")

    def read() -> Status:  # each time anew: a daemon may have been started meanwhile, or have ended
        return overview.read_status(socket, simulate=simulate)

    first = read()  # what cannot be shown is said before the screen is taken
    if screenshot is None and not _on_a_terminal():
        once = True  # no key could end the live view: it would draw into a pipe for ever
    if once:
        from gemlet.monitor.tables import text

        click.echo(text(first), nl=False)
        if first.daemon is None:
            overview.say_next(first)
    elif screenshot is not None:
        import asyncio

        from gemlet.monitor import top

        screenshot.write_text(asyncio.run(top.screenshot(read)))
        click.echo(f"wrote {screenshot}", err=True)
    else:
        from gemlet.monitor.top import Top

        Top(read).run()


def _on_a_terminal() -> bool:
    """Whether keys can be read and the screen be seen; Textual draws on stderr."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
