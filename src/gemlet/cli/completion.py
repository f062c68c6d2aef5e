"""`gemlet completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    gemlet completion bash > ~/.local/share/bash-completion/completions/gemlet
    gemlet completion zsh > "${fpath[1]}/_gemlet"
    gemlet completion fish > ~/.config/fish/completions/gemlet.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "gemlet", "_GEMLET_COMPLETE").source())
