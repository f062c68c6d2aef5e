"""`gemlet kube`: what runs on the nodes of a Kubernetes cluster. The chart in packaging/chart starts the first two."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from gemlet.cli import options
from gemlet.errors import GemletError, UsageError

if TYPE_CHECKING:
    from gemlet.kube.admission import Face
    from gemlet.kube.api_server import Access
    from gemlet.kube.edits import Access as GpuAccess
    from gemlet.kube.placement import Packing
    from gemlet.kube.slices import Effect

FACES = ("slots", "units", "dra")
DIRECTORY = click.Path(path_type=Path)
STATE_DIRECTORY = "/var/lib/gemlet"
CDI = "/var/run/cdi"
SHARES_DIRECTORY_ENV = "GEMLET_KUBE_SHARES_DIRECTORY"  # of the option of `gemlet kube shares`
HOST_PATHS = click.option(
    "--host-path",
    "host_paths",
    multiple=True,
    metavar="DIR",
    help="A directory of nodes that pods with a share may mount",
)
CDI_DIRECTORY = click.option("--cdi-directory", type=DIRECTORY, default=CDI, show_default=True)
OVERSUBSCRIBE = click.option(
    "--oversubscribe",
    type=options.Number(1, 8),
    default=1.0,
    show_default=True,
    help="Offer each GPU's memory this many times; above 1, the daemon needs a capacity for each device",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run the parts of gemlet that belong to a Kubernetes cluster.

    \b
    gemlet kube agent --node $(hostname) --kubeconfig admin.json
    gemlet kube webhook --certificates /etc/gemlet/tls
    gemlet kube shares

    The chart in packaging/chart starts both.
    """


@command.command()
@click.option("--node", envvar="NODE_NAME", required=True, help="Name of this node  [env: NODE_NAME]")
@click.option("--face", type=click.Choice(FACES), default="slots", show_default=True, help="How GPUs are offered")
@click.option("--slots", type=options.Whole(1, 100), default=4, show_default=True, help="Slots of each GPU")
@click.option(
    "--packing",
    type=click.Choice(("pack", "spread")),
    default="pack",
    show_default=True,
    help="Fill GPUs and NVLink islands that are in use first, or those that are used least",
)
@click.option(
    "--gpu-access",
    type=click.Choice(("runtime", "cdi", "nodes")),
    default="runtime",
    show_default=True,
    help="How containers get the driver: NVIDIA's runtime, NVIDIA's CDI files, or device nodes only",
)
@OVERSUBSCRIBE
@click.option(
    "--failed-gpus",
    type=click.Choice(("NoSchedule", "NoExecute")),
    default="NoSchedule",
    show_default=True,
    help="With claims, for a GPU that is lost: take no new pods, or end its pods, too",
)
@click.option("--preload-file", is_flag=True, help="Also mount /etc/ld.so.preload, for programs that clear LD_PRELOAD")
@HOST_PATHS
@click.option(
    "--directory",
    type=DIRECTORY,
    default=STATE_DIRECTORY,
    show_default=True,
    help="Directory of shares, hook and checkpoint",
)
@click.option("--kubelet-directory", type=DIRECTORY, default="/var/lib/kubelet", show_default=True)
@CDI_DIRECTORY
@click.option("--port", type=options.Whole(1, 65535), help="Port of /metrics and /healthz")
@click.option("--kubeconfig", type=DIRECTORY, help="A kubeconfig as JSON; without it the pod's service account")
@options.simulate
@click.option("-v", "--verbose", is_flag=True, help="Log more")
@click.pass_obj
def agent(
    socket: str | None,
    *,
    node: str,
    face: str,
    slots: int,
    packing: str,
    gpu_access: str,
    oversubscribe: float,
    failed_gpus: str,
    preload_file: bool,
    host_paths: tuple[str, ...],
    directory: Path,
    kubelet_directory: Path,
    cdi_directory: Path,
    port: int | None,
    kubeconfig: Path | None,
    simulate: bool,
    verbose: bool,
) -> None:
    """Offer this node's GPUs in shares, and hold pods to them.

    \b
    gemlet daemon --system &
    gemlet kube agent --node $(hostname) --kubeconfig admin.json --face dra

    Needs root, a running daemon (it does the enforcing), and the kubelet's directories.
    """
    import asyncio

    _require()
    from gemlet.daemon import address, logs
    from gemlet.kube import agent as kube_agent

    logs.configure(logging.DEBUG if verbose else logging.INFO)
    endpoint = address.explicit(socket) if socket else address.simulated() if simulate else address.system()
    if simulate:
        os.environ["GEMLET_SIM_DIR"] = str(endpoint.machine)
    chosen = kube_agent.AgentOptions(
        node=node,
        endpoint=endpoint,
        api=_access(kubeconfig),
        face=cast("Face", face),
        slots_per_gpu=slots,
        packing=cast("Packing", packing),
        directory=directory.absolute(),
        kubelet=kubelet_directory.absolute(),
        cdi=cdi_directory.absolute(),
        access=cast("GpuAccess", "simulated" if simulate else gpu_access),
        preload_file=preload_file,
        host_paths=host_paths,
        oversubscribe=oversubscribe,
        failed=cast("Effect", failed_gpus),
        port=port,
    )
    try:
        asyncio.run(kube_agent.run(chosen))
    except OSError as error:
        raise GemletError(
            f"the agent cannot run: {error}", hint="run it as root, with the kubelet's directories mounted"
        ) from None


@command.command()
@click.option("--certificates", type=DIRECTORY, required=True, help="Directory with tls.crt and tls.key, watched")
@click.option("--face", type=click.Choice(FACES), default="slots", show_default=True, help="What annotations become")
@click.option("--slots", type=options.Whole(1, 100), default=4, show_default=True, help="Slots of each GPU")
@click.option("--gpu-memory", type=options.Size(), help="Memory of the largest GPU, to refuse what can never fit")
@OVERSUBSCRIBE
@click.option(
    "--plain-compute",
    type=options.Whole(1, 100),
    default=100,
    show_default=True,
    help="Percent of time that a plain nvidia.com/gpu becomes, in namespaces whose pods are translated",
)
@click.option(
    "--plain-memory", type=options.Size(), help="Memory that it becomes; default: all of a GPU's (--gpu-memory)"
)
@HOST_PATHS
@click.option("--allow-host-pid", is_flag=True, help="Admit pods with a share and hostPID, as simulated GPUs need it")
@click.option("--address", help="Where to listen; default: at all addresses")
@click.option("--port", type=options.Whole(1, 65535), default=8443, show_default=True)
@click.option("--kubeconfig", type=DIRECTORY, help="A kubeconfig as JSON; without it the pod's service account")
@click.option("-v", "--verbose", is_flag=True, help="Log more")
def webhook(
    *,
    certificates: Path,
    face: str,
    slots: int,
    gpu_memory: int | None,
    oversubscribe: float,
    plain_compute: int,
    plain_memory: int | None,
    host_paths: tuple[str, ...],
    allow_host_pid: bool,
    address: str | None,
    port: int,
    kubeconfig: Path | None,
    verbose: bool,
) -> None:
    """Answer the apiserver about pods that ask for a share.

    \b
    gemlet kube webhook --certificates /etc/gemlet/tls --face dra

    With --face dra it also makes the ResourceClaimTemplates that pods come to name.
    """
    import asyncio

    _require()
    from gemlet.daemon import logs
    from gemlet.kube import webhook as kube_webhook
    from gemlet.kube.admission import Cluster
    from gemlet.kube.escape import check_host_paths
    from gemlet.kube.translate import Defaults

    logs.configure(logging.DEBUG if verbose else logging.INFO)
    chosen = kube_webhook.WebhookOptions(
        certificates=certificates,
        cluster=Cluster(
            face=cast("Face", face),
            gpu_memory=int(gpu_memory * oversubscribe) if gpu_memory is not None else None,
            slots_per_gpu=slots,
            host_paths=check_host_paths(host_paths),
            host_pid=allow_host_pid,
        ),
        defaults=Defaults(gpu_memory=gpu_memory, compute=plain_compute, memory=plain_memory),
        address=address,
        port=port,
        api=_access(kubeconfig) if face == "dra" else None,
    )
    try:
        asyncio.run(kube_webhook.run(chosen, kube_webhook.certificate(certificates)))
    except OSError as error:
        raise GemletError(f"port {port} cannot be used: {error.strerror}", hint="choose another --port") from None


@command.command(short_help="List the shares of this node by pod")
@click.option("--directory", type=DIRECTORY, default=STATE_DIRECTORY, show_default=True, help="The agent's directory")
@CDI_DIRECTORY
@options.output("table", "json")
@click.pass_obj
def shares(socket: str | None, *, directory: Path, cdi_directory: Path, output: str) -> None:
    """List the shares of this node by pod: what each was given, and what it uses.

    \b
    kubectl exec -n gemlet-system ds/gemlet-agent -c agent -- gemlet kube shares
    gemlet kube shares -o json

    `gemlet status --node` is the same.
    """
    show_shares(directory, output, socket, cdi_directory)


@command.command(name="unused", short_help="Fail while a pod of the cluster has a share")
@click.option("--kubeconfig", type=DIRECTORY, help="A kubeconfig as JSON; without it the pod's service account")
def unused(kubeconfig: Path | None) -> None:
    """Fail while a pod of the cluster has a share, and name such pods.

    \b
    gemlet kube unused --kubeconfig admin.json && helm uninstall shares

    The chart asks this before it is uninstalled.
    """
    import asyncio

    from gemlet.kube import api_server, holders

    async def ask() -> list[str]:
        async with api_server.connected(_access(kubeconfig)) as api:
            return await holders.find(api)

    found = asyncio.run(ask())
    for name in found:
        click.echo(name)
    if found:
        raise GemletError(
            f"{len(found)} pods have a share of a GPU, and their CUDA calls would fail without gemlet",
            hint="end them first; `helm uninstall --no-hooks` does not ask",
        )


def show_shares(directory: Path, output: str, socket: str | None, cdi_directory: Path = Path(CDI)) -> None:
    """Prints the shares of this node. Raises GemletError if no agent has run here; a daemon need not be there."""
    import json

    from gemlet.daemon import address
    from gemlet.daemon.connection import connect
    from gemlet.errors import DaemonError
    from gemlet.kube import cdi, checkpoint, host, permits, shares_table

    file = directory / "checkpoint.json"
    if not file.exists() and not (directory / "hook").exists():  # an agent puts that there before the first share
        raise GemletError(
            f"{directory} is not the directory of an agent",
            hint="name the agent's directory with `gemlet kube shares --directory DIR`, or start an agent",
        )
    loaded = checkpoint.load(file)
    if loaded.damage is not None and file.exists():
        click.echo(f"error: {file} does not say all: {loaded.damage}", err=True)
        click.echo("hint: the agent keeps it aside at its next start, and what is in use as it is", err=True)
    held = sorted(loaded.shares, key=lambda share: share.group)
    states = {
        share.id: shares_table.state(
            has_file=cdi.is_there(cdi_directory, share.id),
            of_claim=share.claim is not None,
        )
        for share in held
    }
    try:
        with connect([address.explicit(socket) if socket else address.system()]) as daemon:
            usage = shares_table.usage_by_share(held, daemon.call("status"))
    except DaemonError:
        usage = None
    if output == "json":
        refused = {share.id: permits.refusals(directory / host.PERMITS, share.id) for share in held}
        click.echo(json.dumps(shares_table.document(held, usage, states, refused)))
    else:
        click.echo(shares_table.table(held, usage), nl=False)


def _access(kubeconfig: Path | None) -> Access:
    from gemlet.kube import api_server

    if kubeconfig is not None:
        return api_server.from_kubeconfig(kubeconfig)
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except KeyError:
        raise UsageError(
            "no kubeconfig given, and this process does not run in a pod", hint="name a kubeconfig with --kubeconfig"
        ) from None
    return api_server.in_cluster(host, port)


def _require() -> None:
    for package in ("aiohttp", "grpclib", "google", "h11", "prometheus_client"):
        if importlib.util.find_spec(package) is None:  # not imported: each part takes memory for what it uses alone
            raise GemletError(f"{package} is not installed", hint="pip install 'gemlet[kube]'")
