"""`gemlet run`: joins a group, then becomes the program, or at a prompt its parent (attended.py).

Imports click and the standard library only.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gemlet import loading, paths, typed_command
from gemlet.cli import environment, messages, options
from gemlet.config.group_fields import phrases
from gemlet.daemon import address, autostart
from gemlet.daemon.connection import Connection
from gemlet.errors import GemletError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.cli.handing_over import HandedOver
    from gemlet.model import GroupField

MANAGED = ("checked", "force")
MOST_WORDS, LONGEST_WORD = 16, 256  # of the command line, from which the daemon names a group
# What handing_over.py has something to say of: it is not read for others.
HANDING_OVER = frozenset(
    (
        *("apptainer", "bwrap", "byobu", "chroot", "doas", "docker", "env", "flatpak", "gnome-terminal", "kubectl"),
        *("mosh", "nerdctl", "pkexec", "podman", "rsh", "runuser", "singularity", "ssh", "su", "sudo"),
        *("systemd-nspawn", "systemd-run", "tmux"),
    )
)
SNAP = "/usr/bin/snap"  # to which the programs of all snaps are links
BUILTINS = frozenset({"cd", "source", ".", "eval", "exec", "export", "set", "ulimit", "umask", "unset"})
_HINTS = {
    errno.ENOEXEC: "begin the script with `#!` and its interpreter",
    errno.ENOENT: "the interpreter after its `#!`, or its loader, is not there; lines that end as on Windows count as"
    " part of its name",
}
LAST_WORD_SECONDS = 2.0  # that the line at the end may take


class NotFound(GemletError):
    exit_code = 127


class NotExecutable(GemletError):
    exit_code = 126


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--group", type=options.GroupName(), help="Group to join or to create; default: a new one")
@options.limits("run")
@click.option("--no-mps", is_flag=True, help="Do not use MPS even if it runs")
@click.option("--device", metavar="N,...", help="Show the program these devices only: numbers or UUIDs")
@click.option("--no-torch-hook", is_flag=True, help="Add nothing to PyTorch, even if memory can move")
@click.option("--empty-cache", is_flag=True, help="PyTorch: empty its cache after each step of an optimizer")
@click.option(
    "--managed",
    type=click.Choice(MANAGED),
    is_flag=False,
    flag_value=MANAGED[0],
    help="Allocate managed memory instead of device memory; checked: no more than is free (the default), force: any",
)
@options.simulate
@click.option("--strict", is_flag=True, help="Without a daemon, wait 10 s and fail instead of running unmanaged")
@click.option("-q", "--quiet", is_flag=True, help="Do not print what was granted")
@click.argument(
    "program",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="-- COMMAND...",
    shell_complete=options.program_completion,
)
@click.pass_obj
def command(
    socket: str | None,
    *,
    group: str | None,
    limits: dict[str, object],
    no_mps: bool,
    device: str | None,
    no_torch_hook: bool,
    empty_cache: bool,
    managed: str | None,
    simulate: bool,
    strict: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> int:
    """Run a program on a share of a GPU.

    \b
    gemlet run -- python train.py
    gemlet run --min 30% --max 60% --memory 8GiB -- python train.py --lr 0.1
    gemlet run --group team --device 1 -- ./a.out
    gemlet run --sm 30% -- python serve.py
    gemlet run --simulate -- ./a.out

    Starts a daemon if none runs. The exit code is the program's; 125 means that gemlet itself failed, 126 that the
    program cannot be executed, 127 that it was not found.
    """
    options.check_variables(click.get_current_context())
    if empty_cache and no_torch_hook:
        raise UsageError("--empty-cache needs the hook that --no-torch-hook leaves out", hint="leave one out")
    fraction = limits.get("sm")
    if no_mps and isinstance(fraction, float) and fraction < 1:
        raise UsageError("--sm needs MPS, and --no-mps forbids it", hint="leave one out")
    path = find_program(program[0])
    base = dict(os.environ)
    if base.get(environment.ENV_FAILED):
        hides = f"CUDA_VISIBLE_DEVICES={base.get('CUDA_VISIBLE_DEVICES', '')}"
        messages.warning(
            f"`gemlet env` has failed in this shell, which sees no GPU since then: {hides}",
            "let `gemlet env` succeed, or begin a new shell",
        )
    unhooked = unlimited(program, path, base, strict=strict)
    shown: dict[str, str] = {}
    index = None
    if device is not None:
        shown, index = environment.choose_devices(device, base)
    environment.check_whole((base | shown).get("CUDA_VISIBLE_DEVICES", "").split(","))
    with autostart.find_or_start(address.candidates(socket, simulate=simulate)) as daemon:
        joined = daemon.call(
            "join",
            group=group,
            command=program[0],
            arguments=[word[:LONGEST_WORD] for word in program[:MOST_WORDS]],
            limits=limits,
            device=index,
            devices=environment.to_be_checked(shown, base) if index is None else [],
            mps=not no_mps,
            **environment.own_pipes(base),
        )
    environment.check_version(joined, simulated=joined["simulated"])
    if (missing := daemon.in_place_of) is not None:
        messages.warning(
            f"the daemon of this machine, in {missing.directory}, does not answer: one of this user's own was started",
            "it knows nothing of other users' programs: have the other one started, then start the program again",
        )
    for warning in joined["warnings"]:
        messages.warning(warning["message"], warning["hint"])
    if unhooked:
        messages.warning(*unhooked)
    membership = environment.Membership(
        group=joined["group"],
        socket=joined["socket"],
        strict=strict,
        machine=joined["machine"],
        mps=joined["environment"],
        torch=torch_hook(movable=joined["movable"], no_hook=no_torch_hook, empty_cache=empty_cache),
        managed=managed,
        granted=joined["granted"],
    )
    if not quiet:
        messages.say(granted_line(joined, device))
    variables = environment.for_program(membership, base) | shown
    become = functools.partial(execute, path, program, variables)
    if quiet or not at_a_prompt():
        become()
    from gemlet.cli import attended

    return attended.run(become, functools.partial(say_what_it_used, joined, daemon.endpoint, time.monotonic()))


def at_a_prompt() -> bool:
    """Whether a person may wait for the program: worth a closer look."""
    if not sys.stderr.isatty():
        return False
    from gemlet.cli import attended

    return attended.wanted()


def say_what_it_used(joined: dict[str, Any], endpoint: address.Endpoint, begin: float) -> None:
    """One line at the program's end: what its group used since ``begin``, waited for, and what would have helped.

    Nothing if the daemon knows nothing of it: the program has used no device, or for less than a second.
    """
    from gemlet.cli import report
    from gemlet.monitor.report import line

    try:
        with Connection(endpoint, timeout=LAST_WORD_SECONDS) as daemon:
            found = report.ask(daemon, joined["group"], time.monotonic() - begin + 1, patience=LAST_WORD_SECONDS)
    except GemletError:  # the program has ended as it did: this is no time for errors of ours
        return
    if found is not None:
        messages.say(f"{_who(joined)}: group {joined['group']}: {line(found)}")


def torch_hook(*, movable: bool, no_hook: bool, empty_cache: bool) -> str | None:
    """What PyTorch does at the end of an iteration. Nothing where its memory cannot move: nothing would come of it."""
    if empty_cache:
        return "empty-cache"
    return "dead" if movable and not no_hook else None


def granted_line(joined: dict[str, Any], device: str | None) -> str:
    """One line for people: what the daemon granted and where to watch it."""
    granted = joined["granted"]
    parts = [_phrase(field, phrase, joined) for field, phrase in phrases(granted)]
    if device is not None:
        parts.append(f"device {device}")
    see = typed_command.command("top", simulated=joined["simulated"])
    return f"{_who(joined)}: group {joined['group']}: {', '.join(parts)}; see: {see}"


def _who(joined: dict[str, Any]) -> str:
    return "gemlet (simulated)" if joined["simulated"] else "gemlet"


def _phrase(field: GroupField, phrase: str, joined: dict[str, Any]) -> str:
    if field.name == "sm" and not joined.get("sm_in_force"):
        return phrase + " (not in force: not under MPS)"
    return phrase


def find_program(name: str) -> str:
    """Path of the program, as execvp(3) would find it. Raises `NotFound` or `NotExecutable`."""
    present = list(loading.on_path(name, os.environ))
    for path in present:
        if os.access(path, os.X_OK):
            return path
    if present:
        hint = f"chmod +x {typed_command.quoted(name)}, or run it with its interpreter"
        raise NotExecutable(f"{name} is not executable", hint=hint)
    if os.path.isdir(name):  # noqa: PTH112
        raise NotExecutable(f"{name} is a directory", hint="name a program in it")
    raise NotFound(f"{name} is not found", hint=_hint_of_missing(name))


def _hint_of_missing(name: str) -> str:
    if os.path.isfile(name):  # noqa: PTH113  found here, but not on PATH
        return f"write {typed_command.quoted(f'./{name}')}, or its interpreter before it"
    if "=" in name:
        return "put a variable before `gemlet`, or write `env` before it"
    if name in BUILTINS:
        return f"the shell does that itself: sh -c {typed_command.quoted(name + ' ...')}"
    words = name.split()
    if len(words) > 1 and any(loading.on_path(words[0], os.environ)):
        return f"leave out the quotes: -- {name}"
    return "check the spelling and PATH"


def unlimited(
    program: tuple[str, ...], path: str, base: Mapping[str, str], *, strict: bool
) -> HandedOver | tuple[str, str] | None:
    """What to say of a program that the hook cannot be loaded into, or that has others start what it is to start, and
    a hint; None of any other.

    Raises `NotExecutable` where that program must not run: under --strict, or if its loader would end it.
    """
    name = program[0]
    reason = loading.obstacle(path, base, strict=strict)
    elsewhere = _handed_over(program, path)
    if strict and elsewhere is not None:
        raise NotExecutable(elsewhere.message, hint=f"{elsewhere.hint}; or leave out --strict")
    if reason is None:
        return elsewhere
    if strict:
        hint = "leave out --strict to run it without limits"
        raise NotExecutable(f"{name} {reason}: the hook cannot be loaded into it", hint=hint)
    if loading.refused_by_loader(path, base, paths.hook_path()):
        hint = "install gemlet from its wheel, whose hook needs no library of glibc's"
        raise NotExecutable(f"{name} {reason}, and its loader refuses this build of the hook", hint=hint)
    hint = "what it starts keeps to the limits, unless the same is true of that"
    return elsewhere or (f"{name} {reason}: it runs without gemlet's limits", hint)


def _handed_over(program: tuple[str, ...], path: str) -> HandedOver | None:
    snap = os.path.realpath(path) == SNAP
    if os.path.basename(program[0]) not in HANDING_OVER and not snap:  # noqa: PTH119
        return None
    from gemlet.cli import handing_over

    return handing_over.handed_over(program, snap=snap)


def execute(path: str, arguments: tuple[str, ...], variables: dict[str, str]) -> NoReturn:
    """Becomes the program. Raises `NotExecutable`."""
    # Python ignores these two, and ignored signals survive exec: a program must die of its broken pipe.
    ignored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(path, arguments, variables)
    except OSError as error:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        raise NotExecutable(f"{path} cannot be executed: {error.strerror}", hint=_HINTS.get(error.errno or 0)) from None
