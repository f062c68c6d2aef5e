"""``gemlet profile``: measures models, for planning."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import completion, messages, options
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("profile")
@click.argument("models", nargs=-1, metavar="[MODELS...]", shell_complete=completion.models)
@click.option("-o", "--output", type=_FILE, help="Profile file; an existing one is continued.")
@click.option("--device", type=options.Whole(0), default=0, show_default=True, help="Index of the GPU.")
@click.option(
    "--budget",
    type=options.Seconds(),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop after this time, whatever a model does.",
)
@click.option("--quick", is_flag=True, help="Measure two sizes and two batches of each model only.")
@click.option("--fresh", is_flag=True, help="Measure everything again, even if FILE has it.")
@click.option(
    "--modelled",
    is_flag=True,
    help="Compute the profiles of built-in models instead; needs no GPU, and the file says so.",
)
@click.option("--list", "listing", is_flag=True, help="List the built-in models and stop.")
def command(
    models: tuple[str, ...],
    *,
    output: Path | None,
    device: int,
    budget: float,
    quick: bool,
    fresh: bool,
    modelled: bool,
    listing: bool,
) -> int:
    """Measure MODELS on a GPU: latency by share of the SMs and batch, memory, and how models disturb each other.

    MODELS are built-in models or directories that are model repositories; default: every built-in architecture.
    No other program should use the GPU meanwhile. Exits with 1 if something could not be measured.

    \b
    gemlet profile -o h200.json
    gemlet profile resnet50 bert --budget 60 -o two.json
    gemlet profile models/ -o mine.json
    gemlet profile --modelled -o modelled.json
    """
    from gemlet.config import text_file
    from gemlet.serve.profiles import profile, profile_files

    if listing:
        if output is not None:
            raise UsageError("--list prints the models and writes no file", hint="leave out -o")
        _print_list()
        return 0
    if modelled:
        made = _modelled(models)
        click.echo(f"gemlet: {made.note}", err=True)
        if output is None:
            click.echo(profile.render(made), nl=False)
        else:
            if not fresh:
                _refuse_to_replace(output)
            text_file.write_text(output, profile.render(made))
        return 0
    if output is None:
        raise UsageError("no output file given", hint="name a file with -o FILE; it is written as measurements come in")
    from gemlet.serve.profiling import apart, session
    from gemlet.serve.profiling.progress import Bar
    from gemlet.serve.profiling.subjects import subjects

    wanted, spec_of = subjects(models)
    old = profile_files.load_profiles(output) if output.exists() and not fresh else None
    with apart.Apart(device, spec_of, machine=apart.MACHINE) as rig, Bar() as bar:
        begin = time.monotonic()
        found, left = session.run(
            rig, wanted, old,
            write=lambda now: text_file.write_text(output, profile.render(now)),
            clock=time.monotonic, budget=budget, reporter=bar, quick=quick,
        )  # fmt: skip
        seconds = time.monotonic() - begin
    click.echo(f"gemlet: {len(found.models)} models on {found.device.name} in {output}, {seconds:.0f} s", err=True)
    for missing in left:
        hint = f"the same command continues {output}" if missing is left[-1] and output.exists() else None
        messages.error(f"{missing.model}: {missing.why}", hint)
    return 1 if left else 0


def _refuse_to_replace(output: Path) -> None:
    """A file of what was measured, which takes minutes of a GPU. Raises UsageError; ConfigError: of no profiles."""
    from gemlet.serve.profiles import profile_files

    if output.is_file() and output.stat().st_size:
        origin = profile_files.load_profiles(output).origin
        if origin != "modelled":
            hint = "name another file, or replace it with --fresh"
            raise UsageError(f"{output} has {origin} profiles, in whose place computed ones would be", hint=hint)


def _modelled(models: tuple[str, ...]) -> Profiles:
    from msgspec.structs import replace

    from gemlet.serve.profiles import modelled

    every = modelled.h200()
    if folders := [name for name in models if name not in every.models and Path(name).is_dir()]:
        hint = f"choose a built-in model: {', '.join(every.models)}"
        raise UsageError(f"{', '.join(folders)}: the models of a repository can only be measured, on a GPU", hint=hint)
    if unknown := [name for name in models if name not in every.models]:
        hint = f"choose one of {', '.join(every.models)}"
        raise UsageError(f"there is no modelled profile of {', '.join(unknown)}", hint=hint)
    return replace(every, models={name: every.models[name] for name in models or every.models})


def _print_list() -> None:
    from gemlet.monitor.tables import table
    from gemlet.serve.models.built_in import BUILT_IN

    click.echo("\n".join(table(("model", "what it is"), [(name, entry.about) for name, entry in BUILT_IN.items()])))
