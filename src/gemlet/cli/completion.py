"""`gemlet completion`."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import CompletionItem, get_completion_class

from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import GemletError
from gemlet.model import POLICIES as ARBITER_POLICIES

ASK_SECONDS = 1.0  # a shell waits for the answer
# What bash puts on the line is not quoted, and Enter runs what stands there: another user's group may be named $(...).
_ONE_WORD = re.compile(r"[\w./@+][\w./@+~-]*")


def groups(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Groups of the daemon whose names begin so; none if no daemon answers. Not those that a shell would read as
    something else than one word."""
    endpoints = address.candidates(
        context.find_root().params.get("socket"), simulate=bool(context.params.get("simulate"))
    )
    try:
        with connect(endpoints, timeout=ASK_SECONDS) as daemon:
            names = [group["name"] for group in daemon.call("status")["groups"]]
    except (GemletError, OSError, LookupError, TypeError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and _ONE_WORD.fullmatch(name)]


def policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Planning policies, with what each does."""
    from gemlet.serve.plan.policies import POLICIES

    return [CompletionItem(name, help=entry.line) for name, entry in POLICIES.items() if name.startswith(incomplete)]


def all_policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Those of `gemlet simulate`: the arbiter's, none at all, and with --serve those of plans."""
    if context.params.get("serve"):
        return policies(context, parameter, incomplete)
    return [CompletionItem(name) for name in (*ARBITER_POLICIES, "none") if name.startswith(incomplete)]


def models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Built-in models, by name."""
    from gemlet.serve.models.built_in import BUILT_IN

    return [CompletionItem(name) for name in BUILT_IN if name.startswith(incomplete)]


def programs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The command after `--`: first a program of PATH or a file, then files."""
    file = CompletionItem(incomplete, type="file")
    if context.params.get(parameter.name or "") or "/" in incomplete or not incomplete:
        return [file]
    found = {
        entry.name
        for directory in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if os.path.isdir(directory)  # noqa: PTH112
        for entry in os.scandir(directory)
        if entry.name.startswith(incomplete) and _ONE_WORD.fullmatch(entry.name) and os.access(entry.path, os.X_OK)
    }
    return [file, *(CompletionItem(name) for name in sorted(found))]


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
