"""The `gemlet` command: verbs load lazily, errors are printed here and nowhere else.

Data goes to stdout, messages to stderr. A GemletError becomes `error:`, a blank line, `hint:` and its exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

import gemlet
from gemlet.cli import messages
from gemlet.errors import GemletError, NotBuilt

if TYPE_CHECKING:
    from collections.abc import Sequence

# verb -> module and attribute, and the line the overview shows without importing the module
VERBS: dict[str, tuple[str, str]] = {
    "run": ("gemlet.cli.run:command", "Run a program on a share of a GPU"),
    "status": ("gemlet.cli.status:command", "Show devices, groups and clients"),
    "top": ("gemlet.cli.top:command", "Watch devices, groups and clients live"),
    "set": ("gemlet.cli.set:command", "Change a group while it runs"),
    "explain": ("gemlet.cli.explain:command", "Say why a group runs or waits"),
    "history": ("gemlet.cli.history:command", "Show what a group got, up to 90 days back"),
    "trace": ("gemlet.cli.trace:command", "Record who ran and who waited, for Perfetto"),
    "web": ("gemlet.cli.web:command", "Show devices, groups and history in a browser"),
    "report": ("gemlet.cli.report:command", "Say what a group used, and what would have helped"),
    "audit": ("gemlet.cli.audit:command", "List programs that use a GPU outside gemlet"),
    "demo": ("gemlet.cli.demo:command", "See three programs share one device"),
    "doctor": ("gemlet.cli.doctor:command", "Check this machine, with a hint for each problem"),
    "env": ("gemlet.cli.env:command", "Print the environment for Slurm, Docker and scripts"),
    "cdi": ("gemlet.cli.cdi:command", "Make groups devices of Docker and Podman"),
    "jupyter": ("gemlet.cli.jupyter:command", "Make Jupyter kernels that run on a share"),
    "mps": ("gemlet.cli.mps:command", "Run programs side by side under NVIDIA MPS"),
    "daemon": ("gemlet.cli.daemon:command", "Run the daemon in the foreground"),
    "stop": ("gemlet.cli.stop:command", "Stop the daemon; programs run on, within their limits of memory"),
    "profile": ("gemlet.cli.profile:command", "Measure models on a GPU, for planning"),
    "plan": ("gemlet.cli.plan:command", "Place models with latency goals on gpu-lets"),
    "serve": ("gemlet.cli.serve:command", "Serve models with latency goals on gpu-lets"),
    "infer": ("gemlet.cli.infer:command", "Run batches of one model, without a server"),
    "kube": ("gemlet.cli.kube:command", "Run gemlet's parts of a Kubernetes cluster"),
    "load": ("gemlet.cli.load:command", "Send requests to a model server, when they are due"),
    "simulate": ("gemlet.cli.simulate:command", "Show what groups would get, in virtual time"),
    "completion": ("gemlet.cli.completion:command", "Print a completion script for a shell"),
}

# What the same is called elsewhere.
OTHER_WORDS = {
    **dict.fromkeys(("ps", "ls", "list", "info"), ("status", "top")),
    **dict.fromkeys(("start", "exec", "launch"), ("run",)),
    **dict.fromkeys(("kill", "shutdown", "quit"), ("stop",)),
    **dict.fromkeys(("why", "inspect", "describe"), ("explain",)),
    "config": ("set",),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in OTHER_WORDS:
            raise click.NoSuchCommand(name, possibilities=(), ctx=ctx)
        if name not in VERBS and not name.startswith("-"):
            raise click.NoSuchCommand(name, possibilities=VERBS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.command(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "GEMLET", "max_content_width": 100},
    epilog="Every option can be set in the environment: GEMLET_RUN_MEMORY=8GiB is `run --memory 8GiB`.",
)
@click.option(
    "--socket",
    metavar="PATH",
    help="Use the daemon with this socket or runtime directory  [env: GEMLET_SOCKET]",
)
@click.version_option(gemlet.__version__, "-V", "--version", prog_name="gemlet", message="%(prog)s %(version)s")
@click.pass_context
def command(context: click.Context, socket: str | None) -> None:
    """Share NVIDIA GPUs among unmodified CUDA programs, with guarantees.

    \b
    gemlet run --min 30% --memory 8GiB -- python train.py
    gemlet top
    gemlet demo

    Without a command, on a terminal, it shows who uses the GPUs, and what to type next.
    """
    context.obj = socket
    if context.invoked_subcommand is None:
        if not sys.stdout.isatty():  # a script that lost its verb
            raise click.exceptions.NoArgsIsHelpError(context)
        from gemlet.cli import overview

        overview.show(socket)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: runs the command line and ends the process with the right exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911, PLR0912  one a kind of ending
    """Runs the command line and returns its exit code."""
    output = sys.stdout
    try:
        result: Any = command.main(arguments, prog_name="gemlet", standalone_mode=False)
        sys.stdout.flush()
    except GemletError as error:
        others: tuple[GemletError, ...] = getattr(error, "others", ())  # of a configuration file: all at once
        for number, each in enumerate((error, *others)):
            messages.error(str(each), each.hint, apart=number > 0)
        return error.exit_code
    except ImportError as error:
        if error.name != "gemlet._native":
            raise
        missing = NotBuilt(error)
        messages.error(str(missing), missing.hint)
        return missing.exit_code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.exceptions.NoArgsIsHelpError as overview:
        click.echo(overview.format_message(), err=True)
        return 2
    except click.UsageError as error:
        if isinstance(error, click.BadParameter) and isinstance(error.param, click.Argument) and not error.param_hint:
            error.param_hint = f"'{error.param.human_readable_name.strip('[]')}'"  # of an optional one
        # Another option that is spelt like it, as --image, is not what was meant.
        simulated = isinstance(error, click.NoSuchOption) and error.option_name == "--simulate"
        messages.error(_first_lower(error.message if simulated else error.format_message()), _hint(error))
        return 2
    except click.ClickException as error:
        messages.error(_first_lower(error.format_message()), None)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader is gone
        return 0
    except SystemExit:
        if sys.stdout is output:
            raise
        _drop_output()  # click saw the broken pipe, put something in its place, and would end with 1
        return 0
    except OSError as error:  # a full disk behind stdout, a directory that cannot be written
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        messages.error(f"{where}{error.strerror or error}", None)
        return GemletError.exit_code
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keeps the interpreter's exit quiet


def _hint(error: click.UsageError) -> str | None:
    own: str | None = getattr(error, "hint", None)  # of options.BadValue
    if own or error.ctx is None:
        return own
    if isinstance(error, click.NoSuchOption) and error.option_name == "--socket":
        return "put it before the verb: gemlet --socket PATH " + error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption) and error.option_name == "--simulate":
        return _simulated_hint(error.ctx)
    if isinstance(error, click.NoSuchCommand) and error.command_name in OTHER_WORDS:
        return "did you mean " + " or ".join(f"`gemlet {verb}`" for verb in OTHER_WORDS[error.command_name]) + "?"
    what = "commands" if isinstance(error, click.NoSuchCommand) else "options"
    return f"`{error.ctx.command_path} -h` shows the {what}"


def _simulated_hint(context: click.Context) -> str:
    if context.parent is None:
        return "put it after the verb: gemlet status --simulate"
    if isinstance(context.command, click.Group):
        return f"put it at the end: {context.command_path} COMMAND --simulate"
    return f"leave it out: `{context.command_path}` is the same with and without a simulated machine"


def _first_lower(message: str) -> str:
    message = message.rstrip(".").replace("\n\t", " ")  # click puts each choice of an argument on a line of its own
    return message if message[1:2].isupper() else message[:1].lower() + message[1:]  # HTTP, TIME


if __name__ == "__main__":
    main()
