"""`gemlet env`: what `gemlet run` would set, for places where it cannot be the one that starts the program."""

from __future__ import annotations

import os
import shlex

import click

from gemlet import paths
from gemlet.cli import environment, options
from gemlet.daemon import address
from gemlet.daemon.connection import Connection, no_daemon
from gemlet.errors import DaemonUnreachable, UsageError
from gemlet.kube.edits import container_edits


@click.command()
@click.option(
    "--group", type=options.GroupName(), default="default", show_default=True, help="Group that the program joins"
)
@click.option(
    "--strict", is_flag=True, help="If the daemon is lost, wait 10 s and fail instead of running on unmanaged"
)
@click.option("--no-mps", is_flag=True, help="Do not use MPS even if it runs")
@click.option("--docker", is_flag=True, help="Print options for `docker run` instead of exports")
@options.simulate
@click.pass_obj
def command(socket: str | None, *, group: str, strict: bool, no_mps: bool, docker: bool, simulate: bool) -> None:
    """Print the environment for Slurm, Docker and scripts.

    \b
    eval "$(gemlet env --group team)"; python train.py
    docker run --gpus all $(gemlet env --group team --docker) IMAGE python train.py

    The daemon must be running. A group that is not configured gets no limits: configure it, or use `gemlet run`.
    """
    # A container has its own environment: what this one names does not reach it.
    own = None if docker else environment.own_pipe_directory(os.environ)
    endpoint, mps = _running(address.candidates(socket, simulate=simulate), group, mps=not no_mps, own=own)
    machine = str(endpoint.machine) if endpoint.kind == "simulated" else None
    membership = environment.Membership(
        group=group, socket=str(endpoint.clients), strict=strict, machine=machine, mps=mps
    )
    if docker:
        click.echo(" ".join(_docker_options(membership)))
        return
    for name, value in environment.variables(membership, os.environ).items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _running(
    endpoints: list[address.Endpoint], group: str, *, mps: bool, own: str | None
) -> tuple[address.Endpoint, dict[str, str]]:
    for endpoint in endpoints:
        try:
            with Connection(endpoint) as daemon:
                known = {entry["name"] for entry in daemon.call("status")["groups"]}
                answer = daemon.call("environment", group=group, mps=mps, pipe_directory=own)
        except DaemonUnreachable:
            continue
        environment.check_version(answer, simulated=endpoint.kind == "simulated")
        if group not in known:
            click.echo(f"note: the daemon has no group {group}; its programs will run without limits", err=True)
        if not answer["sm_in_force"]:
            click.echo(f"note: the fraction of group {group} is not in force: not under MPS", err=True)
        return endpoint, answer["environment"]
    raise no_daemon(endpoints[-1])


def _docker_options(membership: environment.Membership) -> list[str]:
    if membership.machine:
        raise UsageError("--docker with --simulate is not supported", hint="use `gemlet run --simulate` in the image")
    edits = container_edits(
        paths.hook_path(),
        os.path.dirname(membership.socket),  # noqa: PTH120
        group=membership.group,
        strict=membership.strict,
        own_path=True,
    )
    mounts = [f"{mount.host}:{mount.container}{':ro' if mount.read_only else ''}" for mount in edits.mounts]
    options = [f"-v {shlex.quote(mount)}" for mount in mounts]
    if membership.mps:
        options.append("--ipc=host")  # MPS's server and its clients share memory
    variables = {**edits.env, **membership.mps}
    return options + [f"-e {shlex.quote(f'{name}={value}')}" for name, value in variables.items()]
