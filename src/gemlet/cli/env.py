"""`gemlet env`: what `gemlet run` would set, for places where another program must start the program.

`eval "$(gemlet env)"` and `docker run $(gemlet env --docker)` ignore exit codes, so nothing on stdout would mean a
program without limits. Where there is no answer, `gemlet env` therefore prints text that makes the command fail.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from gemlet import loading, paths
from gemlet.cli import environment, options
from gemlet.cli.environment import ENV_FAILED as FAILED
from gemlet.cli.environment import LIMITS
from gemlet.daemon import address
from gemlet.daemon.connection import Connection, no_daemon
from gemlet.daemon.group_entry import no_group
from gemlet.errors import DaemonUnreachable, GemletError, Refused, UsageError
from gemlet.kube.edits import container_edits, mps_mounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FORMS = ("shell", "docker", "json")
WAS_UNSET = "unset"


class EnvCommand(click.Command):
    """Also a usage error ends with what makes the command fail."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        form = next((form for form in FORMS[1:] if f"--{form}" in args), "shell")
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError:
            click.echo(failing(form))
            raise


@click.command(cls=EnvCommand)
@click.option(
    "--group", type=options.GroupName(), default="default", show_default=True, help="Group that the program joins"
)
@click.option("--strict", is_flag=True, help="Without a daemon, wait 10 s and fail instead of running unmanaged")
@click.option("--no-mps", is_flag=True, help="Do not use MPS even if it runs")
@click.option("--docker", "form", flag_value="docker", help="Print options for `docker run` instead of exports")
@click.option("--json", "form", flag_value="json", help="Print one JSON object of names and values instead of exports")
@options.simulate
@click.pass_obj
def command(socket: str | None, *, group: str, strict: bool, no_mps: bool, form: str | None, simulate: bool) -> None:
    """Print the environment for Slurm, Docker and scripts.

    \b
    eval "$(gemlet env --group team)"; python train.py
    docker run --gpus all $(gemlet env --group team --docker) IMAGE python train.py
    gemlet env --group team --json

    The daemon must be running and know the group, and the group be open to you. Otherwise the command that uses the
    output fails: a script ends with 125, an interactive shell sees no GPU until `gemlet env` succeeds, and neither
    Docker nor a reader of JSON accepts the text.
    """
    form = form or "shell"
    try:
        click.echo(_answer(socket, group=group, strict=strict, no_mps=no_mps, form=form, simulate=simulate))
    except BaseException:  # of an error of our own, too, what is printed would be nothing
        click.echo(failing(form))
        raise


def failing(form: str) -> str:
    """What is printed in place of an environment, so that nothing runs without limits."""
    if form != "shell":
        return "--gemlet-env-failed"  # no option of Docker's, and not JSON
    # What it was before the first failure is kept.
    posix = (
        f'[ -n "${{{FAILED}-}}" ] || export {FAILED}="${{CUDA_VISIBLE_DEVICES-{WAS_UNSET}}}" CUDA_VISIBLE_DEVICES=-1; '
        f"case $- in *i*) false ;; *) exit {GemletError.exit_code} ;; esac"
    )
    fish = (
        f'set -q {FAILED}; or set -gx {FAILED} (set -q CUDA_VISIBLE_DEVICES; and echo "$CUDA_VISIBLE_DEVICES"; '
        f"or echo {WAS_UNSET}); set -gx CUDA_VISIBLE_DEVICES -1; "
        f"status is-interactive; or exit {GemletError.exit_code}; true"
    )
    return _either(f"eval '{fish}'", f"eval '{posix}'")


def _either(fish: str, posix: str) -> str:
    """One command that fish and the others read, of which each runs its own; fish goes on after an error of syntax.
    Where ``fish`` fails, that shell would run ``posix``, too."""
    return f"eval 'builtin status fish-path' >/dev/null 2>&1 && {fish} || {posix}"


def _quoted(value: str) -> str:
    """One word for fish, too, to which a backslash in single quotes may be an escape."""
    quoted = shlex.quote(value)
    if "\\" not in value:
        return quoted
    return "".join({"'": "\\'", "\\": "\\\\"}.get(part) or f"'{part}'" for part in re.split(r"(['\\])", value) if part)


def _after_failure(base: Mapping[str, str]) -> list[str]:
    """Undoes `failing` in an interactive shell."""
    before = base.get(FAILED)
    if not before:
        return []
    return [
        _either("set -e CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES")
        if before == WAS_UNSET
        else f"export CUDA_VISIBLE_DEVICES={_quoted(before)}",
        _either(f"set -e {FAILED}", f"unset {FAILED}"),
    ]


def _answer(socket: str | None, *, group: str, strict: bool, no_mps: bool, form: str, simulate: bool) -> str:
    if form != "docker" and loading.is_secure(os.environ):
        hint = "leave it out of GLIBC_TUNABLES: since glibc 2.40 the loader then ignores LD_PRELOAD"
        raise UsageError("glibc.rtld.enable_secure keeps the hook from being loaded", hint=hint)
    # A container has its own environment: what this one names does not reach it.
    own = {} if form == "docker" else environment.own_pipes(os.environ)
    endpoint, answers = running(address.candidates(socket, simulate=simulate), [group], mps=not no_mps, own=own)
    answer = answers[group]
    if form != "docker" and (closed := answer.get("closed")) is not None:  # a container may have another user
        raise Refused(closed["message"], hint=closed["hint"])
    machine = str(endpoint.machine) if endpoint.kind == "simulated" else None
    membership = environment.Membership(
        group=group,
        socket=str(endpoint.clients),
        strict=strict,
        machine=machine,
        mps=answer["environment"],
        granted=answer.get("granted", {}),  # a daemon of before does not say
    )
    if form == "docker":
        return " ".join(_docker_options(membership, under_mps=answer["under_mps"]))
    variables = environment.variables(membership, os.environ)
    if form == "json":
        return json.dumps(variables, indent=1)
    exports = ({LIMITS: ""} | variables).items()  # an earlier `gemlet env` in this shell may have set it
    return "\n".join([*_after_failure(os.environ), *(f"export {name}={_quoted(value)}" for name, value in exports)])


def running(
    endpoints: list[address.Endpoint], groups: Sequence[str] | None, *, mps: bool, own: Mapping[str, Any] | None = None
) -> tuple[address.Endpoint, dict[str, dict[str, Any]]]:
    """The first daemon that can be reached, and by group its answer to `environment`.

    ``groups``: None for those of the configuration; ``own``: as of `environment.own_pipes`.
    Raises `GemletError` where there is no daemon or a group is not there.
    """
    for endpoint in endpoints:
        try:
            with Connection(endpoint) as daemon:
                known = {entry["name"]: entry["origin"] for entry in daemon.call("status")["groups"]}
                chosen = groups if groups is not None else [n for n, o in known.items() if o == "configuration"]
                answers = {g: daemon.call("environment", group=g, mps=mps, **(own or {})) for g in chosen}
                for group, answer in answers.items():
                    environment.check_version(answer, simulated=endpoint.kind == "simulated")
                    if group not in known:
                        raise no_group(group, known)
        except DaemonUnreachable:
            continue
        for group, answer in answers.items():
            if not answer["sm_in_force"]:
                click.echo(f"note: the fraction of group {group} is not in force: not under MPS", err=True)
        return endpoint, answers
    raise no_daemon(endpoints[-1])


def _docker_options(membership: environment.Membership, *, under_mps: bool) -> list[str]:
    if membership.machine:
        raise UsageError("--docker with --simulate is not supported", hint="use `gemlet run --simulate` in the image")
    edits = container_edits(
        paths.hook_path(),
        os.path.dirname(membership.socket),  # noqa: PTH120
        group=membership.group,
        strict=membership.strict,
        own_path=True,
    )
    places = [*edits.mounts, *(mps_mounts(membership.mps) if under_mps else ())]
    mounts = [f"{mount.host}:{mount.container}{':ro' if mount.read_only else ''}" for mount in places]
    options = [f"-v {_word(mount)}" for mount in mounts]
    if under_mps:
        options.append("--ipc=host")  # MPS's server and its clients share memory
    variables = {**edits.env, **environment.known_limits(membership.granted), **membership.mps}
    return options + [f"-e {_word(f'{name}={value}')}" for name, value in variables.items()]


def _word(text: str) -> str:
    """``text`` itself. Raises `UsageError` where $(...) would make more than one word of it, or another."""
    if shlex.quote(text) != text:
        raise UsageError(
            f"{text!r} cannot be passed by $(gemlet env --docker): expected a name without blanks, quotes or wildcards",
            hint="give the group another name; the shell splits what $(...) prints, whatever its quotes",
        )
    return text
