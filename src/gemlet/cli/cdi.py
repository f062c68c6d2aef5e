"""`gemlet cdi`: groups as devices of container runtimes, by the Container Device Interface.

A device puts a container into its group and nothing else: with GEMLET_STRICT, so that a container whose daemon is gone,
or whose group is, fails instead of running without limits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gemlet import paths
from gemlet.cli import messages, options
from gemlet.cli.env import running
from gemlet.daemon import address
from gemlet.errors import GemletError
from gemlet.kube import cdi
from gemlet.kube.edits import group_edits


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make groups devices of Docker and Podman.

    \b
    gemlet cdi generate --output /etc/cdi/gemlet.json
    docker run --gpus all --device gemlet.dev/group=team IMAGE python train.py
    """


@command.command()
@click.argument("groups", type=options.GroupName(), nargs=-1, metavar="[GROUP]...")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write this file instead of stdout, if it differs"
)
@click.option("--no-mps", is_flag=True, help="Do not use MPS even if it runs")
@options.simulate
@click.pass_obj
def generate(socket: str | None, *, groups: tuple[str, ...], output: Path | None, no_mps: bool, simulate: bool) -> None:
    """Print a CDI file with a device for each GROUP; default: each group of the configuration.

    The daemon must be running and know the groups: otherwise nothing is printed or written.
    """
    endpoints = address.candidates(socket, simulate=simulate)
    endpoint, answers = running(endpoints, groups or None, mps=not no_mps)
    if not groups:
        for name in [name for name in answers if not cdi.is_device_name(name)]:
            del answers[name]
            messages.warning(f"group {name!r} is left out", "its name cannot be the name of a CDI device")
    if not answers:
        raise GemletError(
            "the daemon's configuration has no group that can be a device",
            hint="add [groups.NAME] to its configuration, or name a group",
        )
    simulated = _simulated(endpoint) if endpoint.kind == "simulated" else None
    content = cdi.groups(
        {
            name: group_edits(
                paths.hook_path(),
                str(endpoint.directory),
                name,
                mps=answer["environment"],
                under_mps=answer["under_mps"],
                simulated=simulated,
            )
            for name, answer in answers.items()
        }
    )
    if output is None:
        click.echo(json.dumps(content, indent=1))
        return
    written = write(output, content)
    names = ", ".join(answers)
    click.echo(f"{'wrote' if written else 'nothing changed in'} {output}: {names}", err=True)


def write(output: Path, content: dict[str, Any]) -> bool:
    """Writes the file, whole; False if it was there just so. A link stays, and so does what is no file, as /dev/null:
    root runs this. Raises GemletError.
    """
    try:
        if output.exists() and not output.is_file():
            output.write_text(json.dumps(content, indent=1) + "\n")
            return True
        return cdi.write_file(output.resolve(), content)
    except OSError as error:
        hint = "name a file with --output that you may write; runtimes read /etc/cdi"
        raise GemletError(f"{output} cannot be written: {error.strerror}", hint=hint) from None


def _simulated(endpoint: address.Endpoint) -> tuple[str, str, str]:
    profiles = Path(__file__).absolute().parents[1] / "profiles"
    return paths.sim_dir(), str(profiles), str(endpoint.machine)
