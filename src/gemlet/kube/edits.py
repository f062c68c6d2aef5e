"""What a container must be given to be in a share: variables, mounts, device nodes. Pure; standard library only.

The device plugin's Allocate, the CDI files of the DRA driver and of `gemlet cdi`, and `gemlet env --docker` express the
same edits in three notations.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gemlet.kube import names
from gemlet.membership import client_variables
from gemlet.paths import HOOK_LIBRARY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How the container comes by the driver: NVIDIA's container runtime does it, NVIDIA's own CDI files do, gemlet passes
# the device nodes alone (the libraries are in the image), or it is the simulated driver.
Access = Literal["runtime", "cdi", "nodes", "simulated"]
# NVIDIA's runtime, where it is the default or the pod names it, would give what the image asks for: often all GPUs.
_NOTHING_OF_RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "void"}
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount, read-only unless said otherwise. Connecting to a socket in a read-only mount is allowed.

    ``code``: what is mapped to be executed. A user namespace keeps the noexec of the host's file system.
    """

    host: str
    container: str
    read_only: bool = True
    code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """``cdi``: names of other CDI devices that the container needs beside these edits."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where this node keeps what shares need; all paths are the host's.

    hook: the library, with the file that names a share's socket beside it. shares: directory of their directories.
    nodes: device node by GPU UUID. simulated: the simulated driver's directory, its profiles' and the machine's.
    preload_file: a file that names the hook, to be mounted at /etc/ld.so.preload for programs that clear LD_PRELOAD;
    None for none. paths: the directories of the node that pods with a share may mount. permits: the directory of
    `gemlet.kube.permits`.
    """

    hook: str
    shares: str
    access: Access = "runtime"
    nodes: Mapping[str, str] = field(default_factory=dict)
    simulated: tuple[str, str, str] | None = None
    preload_file: str | None = None
    paths: tuple[str, ...] = ()
    permits: str = ""

    def start_check(self, share_id: str) -> tuple[str, ...]:
        """The program that the runtime is to run before a container of a claim's share starts, and its arguments."""
        return (f"{posixpath.dirname(self.hook)}/{names.START_CHECK}", f"{self.permits}/{share_id}")

    @property
    def host_pid(self) -> bool:
        """Whether pods with a share may be among the host's processes: the simulated driver knows them by those ids."""
        return self.access == "simulated"


def share_directory(shares: str, share_id: str) -> str:
    """The directory of one share, on the host."""
    return f"{shares}/{share_id}"


def container_edits(
    hook: str, directory: str, *, group: str | None = None, strict: bool = False, own_path: bool = False
) -> Edits:
    """The hook and a daemon's socket in ``directory`` for a container.

    The directory is mounted, not the socket: a new daemon makes a new socket. Read-only: root in a container could
    put its own sockets in the place of the daemon's, and its own files in that of the daemon's state. ``own_path``: at
    its own path.
    """
    inside = f"{names.HOOK_DIRECTORY}/{HOOK_LIBRARY}"
    place = directory if own_path else names.SOCKET_DIRECTORY
    socket = f"{place}/{names.SOCKET_NAME}"
    return Edits(
        env=client_variables(preload=inside, socket=socket, group=group, strict=strict),
        mounts=(Mount(hook, inside, code=True), Mount(directory, place)),
    )


def mps_mounts(variables: Mapping[str, str]) -> list[Mount]:
    """What a program under MPS writes to of the daemon's: the pipes that its ``variables`` name."""
    pipes = variables.get(MPS_PIPES)
    return [Mount(pipes, pipes, read_only=False)] if pipes else []


def group_edits(
    hook: str,
    directory: str,
    group: str,
    *,
    mps: Mapping[str, str] | None = None,
    under_mps: bool = False,
    simulated: tuple[str, str, str] | None = None,
) -> Edits:
    """What puts a container into ``group`` of the daemon in ``directory``, and never lets it run without that daemon.

    ``mps``: the variables by which it is, or with ``under_mps`` false is not, under MPS. ``simulated``: as in `Host`.
    The GPUs themselves come from NVIDIA's runtime or CDI files, save those of the simulated machine.
    """
    base = container_edits(hook, directory, group=group, strict=True, own_path=True)
    env, mounts = {**base.env, **(mps or {})}, list(base.mounts)
    mounts += mps_mounts(mps or {}) if under_mps else ()
    if under_mps:
        mounts.append(Mount("/dev/shm", "/dev/shm", read_only=False))  # which MPS's server and its clients share
    if simulated is not None:
        more_env, more_mounts = _simulated_edits(*simulated)
        env |= more_env
        mounts += more_mounts
    return Edits(env=env, mounts=tuple(mounts))


def _simulated_edits(driver: str, profiles: str, machine: str) -> tuple[dict[str, str], list[Mount]]:
    return (
        {"LD_LIBRARY_PATH": f"{names.HOOK_DIRECTORY}/lib/sim", "GEMLET_SIM_DIR": names.MACHINE_DIRECTORY},
        [
            Mount(driver, f"{names.HOOK_DIRECTORY}/lib/sim"),
            Mount(profiles, f"{names.HOOK_DIRECTORY}/profiles"),  # where the simulated driver looks, from its own place
            Mount(machine, names.MACHINE_DIRECTORY, read_only=False),
        ],
    )


def share_edits(gpu_uuids: Sequence[str], memory: int, compute: int, limit: int, share_id: str, *, host: Host) -> Edits:
    """What puts a container into the share ``share_id`` of ``gpu_uuids``.

    ``memory``: bytes of each GPU; ``compute`` and ``limit``: percent of each GPU's time, guaranteed and at most. The
    daemon enforces them by the socket; in the environment they stand for programs to read, as they were at the start.
    """
    base = container_edits(host.hook, share_directory(host.shares, share_id), strict=True)
    # The same for a program whose environment says nothing, or something else.
    inside = f"{names.HOOK_DIRECTORY}/{HOOK_LIBRARY}{names.SHARE_SUFFIX}"
    env = {
        **base.env,
        "GEMLET_SHARE_ID": share_id,
        "GEMLET_SHARE_MEMORY": str(memory),
        "GEMLET_SHARE_COMPUTE": str(compute),
        "GEMLET_SHARE_LIMIT": str(limit),
    }
    mounts = [*base.mounts, Mount(f"{host.hook}{names.SHARE_SUFFIX}", inside)]
    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    if host.preload_file is not None:
        mounts.append(Mount(host.preload_file, names.PRELOAD_FILE))
    # By UUID throughout: an index means something else inside the container.
    if host.access == "runtime":
        env |= {"NVIDIA_VISIBLE_DEVICES": ",".join(gpu_uuids), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    elif host.access == "cdi":
        env |= _NOTHING_OF_RUNTIME
        cdi = tuple(f"nvidia.com/gpu={uuid}" for uuid in gpu_uuids)
    elif host.access == "nodes":
        env |= _NOTHING_OF_RUNTIME
        # One that is lost has none: nothing in the container could use it, and its share must not end the agent.
        nodes = (*(host.nodes[uuid] for uuid in gpu_uuids if uuid in host.nodes), *COMMON_NODES)
    elif host.simulated is not None:
        more_env, more_mounts = _simulated_edits(*host.simulated)
        env |= {**more_env, "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids)}
        mounts += more_mounts
    return Edits(env=env, mounts=tuple(mounts), device_nodes=nodes, cdi=cdi)
