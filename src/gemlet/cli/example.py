"""``--example FILE``: a file to begin with, which comes with gemlet, for verbs that read one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import gemlet
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.decorators import FC

PACKAGE = Path(gemlet.__file__).parent


def option(source: str, next_command: str) -> Callable[[FC], FC]:
    """The option of a verb whose example is ``source``, a path in the package; ``next_command`` takes the FILE."""

    def write(context: click.Context, _parameter: click.Parameter, wanted: Path | None) -> None:
        if wanted is None:
            return
        try:
            with wanted.open("x") as file:
                file.write((PACKAGE / source).read_text())
        except FileExistsError:
            raise UsageError(f"{wanted} exists", hint="name a new file") from None
        except OSError as error:
            raise UsageError(f"{wanted} cannot be written: {error.strerror}", hint="name another file") from None
        click.echo(f"gemlet: now try `{next_command} {wanted}`", err=True)
        context.exit()

    return click.option(
        "--example", type=click.Path(dir_okay=False, path_type=Path), is_eager=True, expose_value=False,
        callback=write, metavar="FILE", help="Write an example into FILE and stop.",
    )  # fmt: skip
