"""`gemlet jupyter`: kernels that `gemlet run` starts, for whatever starts kernels by their specs.

Jupyter's own program finds the kernel and installs the new one, so its folders are known in one place: there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from gemlet.cli import run
from gemlet.errors import GemletError

ANSWER_SECONDS = 60.0
PYTHONS = {"python", "python3", f"python3.{sys.version_info.minor}"}  # Jupyter takes its own for these


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make Jupyter kernels that run on a share of a GPU.

    \b
    gemlet jupyter install --max 40% --memory 16GiB
    """


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--kernel", default="python3", show_default=True, help="Kernel to run on a share")
@click.option("--name", help="Name of the new kernel; default: that of the kernel, then -gemlet")
@click.option("--display-name", help="Name by which people choose it; default: that of the kernel, with the options")
@click.option("--prefix", type=click.Path(file_okay=False, path_type=Path), help="Install below this folder")
@click.option("--jupyter", default="jupyter", metavar="PROGRAM", help="Jupyter's program, if it is not on PATH")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF gemlet run]")
@click.pass_obj
def install(
    socket: str | None,
    *,
    kernel: str,
    name: str | None,
    display_name: str | None,
    prefix: Path | None,
    jupyter: str,
    options: tuple[str, ...],
) -> None:
    """Install a kernel that starts another one under `gemlet run`, for this user or below --prefix.

    \b
    gemlet jupyter install --max 40% --memory 16GiB
    gemlet jupyter install --kernel ir --group team --strict
    """
    parent = click.get_current_context(silent=True) or click.Context(run.command, help_option_names=["-h", "--help"])
    run.command.make_context("gemlet run", [*options, "--", "true"], parent)  # refuses what it would not take
    program = shutil.which(jupyter)
    if program is None:
        raise GemletError(
            f"there is no program {jupyter}", hint="name Jupyter's by --jupyter, or pip install jupyter-client"
        )
    found = _kernels(program)
    if kernel not in found:
        raise GemletError(
            f"Jupyter has no kernel {kernel!r}", hint=f"choose one of these by --kernel: {', '.join(sorted(found))}"
        )
    base: dict[str, Any] = found[kernel]["spec"]
    title = display_name or f"{base['display_name']} ({' '.join(['gemlet', *options])})"
    starts = [sys.executable, "-P", "-m", "gemlet", *(["--socket", socket] if socket else []), "run", "-q", *options]
    spec = {**base, "argv": [*starts, "--", *_program_of(base["argv"], program)], "display_name": title}
    where = ["--user"] if prefix is None else ["--prefix", str(prefix)]
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, "kernel")
        shutil.copytree(found[kernel]["resource_dir"], new)  # its logos
        (new / "kernel.json").write_text(json.dumps(spec, indent=1))
        called = name or f"{kernel}-gemlet"
        click.echo(_ask(program, "install", str(new), "--replace", "--name", called, *where)[1].strip(), err=True)


def _kernels(program: str) -> dict[str, Any]:
    try:
        return dict(json.loads(_ask(program, "list", "--json")[0])["kernelspecs"])
    except (ValueError, LookupError, TypeError):
        raise GemletError(f"{program} kernelspec list --json does not print kernels", hint="update Jupyter") from None


def _ask(program: str, *arguments: str) -> tuple[str, str]:
    """What `jupyter kernelspec` prints, on stdout and stderr."""
    try:
        done = subprocess.run(
            [program, "kernelspec", *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GemletError(f"{program} cannot be run: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise GemletError(f"{program} kernelspec {arguments[0]} failed: {last}")
    return done.stdout, done.stderr


def _program_of(argv: list[str], program: str) -> list[str]:
    """The kernel's command, with the Python that Jupyter would take for "python": its own."""
    if argv[0] not in PYTHONS:
        return argv
    with Path(program).open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    interpreter = first.removeprefix("#!").strip()
    if not first.startswith("#!") or "python" not in interpreter or " " in interpreter:
        interpreter = str(Path(program).with_name("python"))
    if not Path(interpreter).exists():
        raise GemletError(
            f"the Python of {program} was not found",
            hint="name another program by --jupyter: the one of its environment",
        )
    return [interpreter, *argv[1:]]
