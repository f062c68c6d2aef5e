"""What the command line says to people, on stderr: `error:` or `warning:`, an empty line, `hint:`."""

from __future__ import annotations

import io
import os
import sys

import click

from gemlet.config.printable import printable


def error(message: str, hint: str | None, *, apart: bool = False) -> None:
    """`error:` and `hint:`, the two words in colour on a terminal. ``apart``: after an empty line."""
    _say("error:", "red", message, hint, apart=apart)


def warning(message: str, hint: str | None) -> None:
    """`warning:` and `hint:`: what may not be meant, and is done all the same."""
    _say("warning:", "yellow", message, hint, apart=False)


def _say(word: str, colour: str, message: str, hint: str | None, *, apart: bool) -> None:
    if apart:
        say("")
    say(f"{coloured(word, colour)} {printable(message, lines=True)}")
    if hint:
        say(f"\n{coloured('hint:', 'cyan')} {printable(hint, lines=True)}")


def say(line: str) -> None:
    """``line`` on stderr. Where nobody can read it, as behind a pipe whose reader has gone or on a full disk, what was
    to be done is done all the same, and ends as it would have."""
    try:
        click.echo(line, err=True)
    except OSError:
        sys.stderr = io.StringIO()  # what is left in the old one would fail again


def coloured(word: str, colour: str) -> str:
    """``word`` in colour where stderr is a terminal and NO_COLOR is not set."""
    plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    return word if plain else click.style(word, fg=colour, bold=True)
