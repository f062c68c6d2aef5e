"""`gemlet doctor`: one line for each thing that must be right, and what to do where it is not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from gemlet.cli import options

WORDS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


@click.command()
@click.option(
    "--image",
    type=click.Path(path_type=Path),
    metavar="ROOT",
    help="Check a container's root directory instead: can its programs have limits?",
)
@options.output("text", "json")
@click.pass_obj
def command(socket: str | None, *, image: Path | None, output: str) -> int:
    """Check this machine, with a hint for each problem.

    \b
    gemlet doctor
    gemlet doctor -o json
    gemlet doctor --image /var/lib/machines/ubuntu

    Exits with 1 if anything fails. A machine without a GPU only warns: the simulated machine works on it.
    """
    from gemlet.cli.doctor_checks import run_checks
    from gemlet.cli.image_checks import run_image_checks

    checks = run_checks(socket) if image is None else run_image_checks(image)
    failed = any(check.verdict == "fail" for check in checks)
    if output == "json":
        listed = [{"name": c.name, "verdict": c.verdict, "text": c.text, "hint": c.hint} for c in checks]
        click.echo(json.dumps({"schema": 1, "ok": not failed, "checks": listed}, indent=2))
        return int(failed)
    width = max(len(check.name) for check in checks)
    for check in checks:
        word, colour = WORDS[check.verdict]
        if "NO_COLOR" not in os.environ and sys.stdout.isatty():
            word = click.style(word, fg=colour)
        click.echo(f"{word}  {check.name:<{width}}  {check.text}")
        if check.hint:
            click.echo(f"      {'':<{width}}  hint: {check.hint}")
    return int(failed)
