"""Finds in a pod what would take a container out of its share. Pure.

Admission asks before a pod is made, and the node again before a container starts: a pod may have passed admission by
(the webhook's opt-out label, a claim of its own making), and its own variables come after those the node gives it.
"""

from __future__ import annotations

import functools
import posixpath
from typing import TYPE_CHECKING, Any

from gemlet.kube import names
from gemlet.kube.request import BadRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A pod's own value for one of these would undo what the share sets; matched as a prefix where it ends in _.
_FORBIDDEN_ENV = ("LD_PRELOAD", "LD_AUDIT", "GEMLET_", "GEMINI_", "NVIDIA_")
_OWN_PATHS = (names.HOOK_DIRECTORY, names.SOCKET_DIRECTORY, names.PRELOAD_FILE)
# Which runtimes take for devices to inject, where they are configured to see a pod's annotations.
_CHOOSING_ANNOTATIONS = ("cdi.k8s.io/", "io.kubernetes.cri-o.Devices")
# Where the names of mounts tell NVIDIA's runtime which GPUs to give, if it is configured so.
_CHOOSING_PATHS = ("/var/run/nvidia-container-devices",)
# Whole trees, since every distribution has its own places: devices; sockets of what starts containers without a share,
# or units as root; what such programs are configured by, CDI and the preload file among it; their state.
_HOST_PATHS = (
    "/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var/lib", "/var/log", "/var/snap", "/var/spool",
    "/var/vcap",
)  # fmt: skip
_PROGRAM_PATHS = (
    "/bin",
    "/home/kubernetes",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/opt/bin",
    "/opt/cni",
    "/opt/nvidia",
    "/sbin",
    "/snap",
    "/usr",
)  # what the host runs as root

_MOST_PATH = 4096  # PATH_MAX of Linux: what is longer is no path


def check_escape(pod: Mapping[str, Any], container: Mapping[str, Any], where: str) -> None:
    """Raises BadRequest if ``container`` of ``pod`` could leave its share. ``where`` names it: spec.containers[0]."""
    for variable in container.get("env") or []:
        if any(
            variable["name"].startswith(name) if name.endswith("_") else variable["name"] == name
            for name in _FORBIDDEN_ENV
        ):
            raise BadRequest(
                f"{where}.env[{variable['name']}]",
                "would let the program escape from its share",
                hint="remove it: gemlet sets it",
            )
    if (container.get("securityContext") or {}).get("privileged"):
        raise BadRequest(
            f"{where}.securityContext.privileged",
            "gives the container access to all GPUs",
            hint="remove it, or add the capabilities that are needed",
        )
    for name in (pod.get("metadata") or {}).get("annotations") or {}:
        if name.startswith(_CHOOSING_ANNOTATIONS):
            raise BadRequest(
                f"metadata.annotations[{name}]",
                "chooses devices by the runtime",
                hint="remove it: gemlet chooses the GPU",
            )
    meets = functools.cache(_meets)  # any number of mounts may be of one long path
    volumes = {volume["name"]: volume for volume in (pod["spec"].get("volumes") or [])}
    for mount in container.get("volumeMounts") or []:
        path = ((volumes.get(mount["name"]) or {}).get("hostPath") or {}).get("path")
        if max(len(mount["mountPath"]), len(path or "")) > _MOST_PATH:
            raise BadRequest(
                f"{where}.volumeMounts",
                f"has a path of more than {_MOST_PATH} bytes",
                hint="mount what has a shorter one",
            )
        at = f"{where}.volumeMounts[{mount['mountPath']}]"
        if meets(mount["mountPath"], _OWN_PATHS):
            raise BadRequest(at, "hides files that gemlet mounts there", hint="mount it elsewhere")
        if meets(mount["mountPath"], _CHOOSING_PATHS):
            raise BadRequest(at, "chooses GPUs by NVIDIA's runtime", hint="remove it: gemlet chooses the GPU")
        if path is not None and meets(path, _HOST_PATHS):
            raise BadRequest(
                at, f"gives access to the host's {path}", hint="mount a directory of data, such as one in /srv or /mnt"
            )
        if path is not None and not mount.get("readOnly") and meets(path, _PROGRAM_PATHS):
            raise BadRequest(at, f"lets the container change the host's {path}", hint="add readOnly: true")


def _meets(path: str, others: Collection[str]) -> bool:
    """Whether ``path`` is, contains or is in one of ``others``, however it is spelt."""
    parts = _parts(path)
    return any(parts[: len(other)] == other[: len(parts)] for other in map(_parts, others))


def _parts(path: str) -> list[str]:
    """The names on the way, as the kernel reads them: /run//gemlet and /run/./gemlet are /run/gemlet."""
    parts = [part for part in posixpath.normpath(f"/{path}").split("/") if part]
    return parts[1:] if parts[:2] == ["var", "run"] else parts  # a link to /run in every image and on every node
