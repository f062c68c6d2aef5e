"""Finds in a pod what would take a container out of its share. Pure.

Admission asks before a pod is made, and the node again before a container starts: a pod may have passed admission by
(the webhook's opt-out label, a claim of its own making), and its own variables come after those the node gives it.
"""

from __future__ import annotations

import functools
import posixpath
from typing import TYPE_CHECKING, Any, NoReturn

from gemlet.errors import GemletError
from gemlet.kube import names
from gemlet.kube.request import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

# A pod's own value for one of these would undo what the share sets: LD_AUDIT names what may tell the loader not to find
# the hook. No other variable of the loader's keeps an absolute path from being preloaded, but for the tunable below.
_FORBIDDEN_ENV = ("LD_PRELOAD", "LD_AUDIT")
_FORBIDDEN_ENV_PREFIXES = ("GEMLET_", "GEMINI_", "NVIDIA_")
_TUNABLES = "GLIBC_TUNABLES"
_SECURE = "enable_secure"  # as in a setuid program, which preloads no path (glibc 2.40)
# With one of these a container is root on the host, as a privileged one is, or sees or changes what is all containers':
# by PERFMON a program reads the stacks of all others on its processors, SYSLOG is the kernel's log, SYS_TIME its clock.
# MKNOD and DAC_OVERRIDE, which containers have anyway, open no device that the cgroup does not allow. LINUX_IMMUTABLE
# is what keeps memory that is shared with the daemon in place (native/server/shared_memory.cpp).
_HOST_CAPABILITIES = {
    "ALL", "BPF", "DAC_READ_SEARCH", "LINUX_IMMUTABLE", "PERFMON", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE",
    "SYS_RAWIO", "SYS_TIME",
}  # fmt: skip
# Of what a pod shares with the host. Elsewhere it is the container's own.
_SHARED_CAPABILITIES = {"hostPID": "SYS_PTRACE", "hostNetwork": "NET_ADMIN"}
# Which runtimes, and their plugins, take for devices to inject, where they are configured to see a pod's annotations.
_CHOOSING_ANNOTATIONS = ("io.kubernetes.cri-o.Devices", "devices.crio.io")
# NVIDIA's own plugin has one below the first; the last is that of GKE.
_CHOOSING_DOMAINS = (".cdi.k8s.io", ".nri.io", ".noderesource.dev", ".devices.gke.io")
# By which CRI-O makes a user namespace, as by hostUsers, where it is configured to see them.
_USER_NAMESPACE_ANNOTATIONS = ("io.kubernetes.cri-o.userns-mode", "userns-mode.crio.io")


def _parts(path: str) -> tuple[str, ...]:
    """The names on the way, as the kernel reads them: /run//gemlet and /run/./gemlet are /run/gemlet. Of a long way
    more of them than any tree is deep."""
    parts = tuple(part for part in posixpath.normpath(f"/{path}").split("/", 64) if part)
    return parts[1:] if parts[:2] == ("var", "run") else parts  # a link to /run in every image and on every node


_Trees = tuple[tuple[str, ...], ...]
_SYSTEM = ("/dev", "/etc", "/proc", "/run", "/sys")  # of every node


def _trees(*paths: str) -> _Trees:
    return tuple(map(_parts, paths))


# Links to anywhere: /proc/self/root/opt/gemlet is /opt/gemlet.
_LINK_TREES = _trees("/proc")
_OWN_TREES = _trees(names.HOOK_DIRECTORY, names.SOCKET_DIRECTORY, names.PRELOAD_FILE)
# Where the names of mounts tell NVIDIA's runtime which GPUs to give, if it is configured so.
_CHOOSING_TREES = _trees("/var/run/nvidia-container-devices")
MOST_MOUNTS = 10_000  # of all containers that are checked together: a tenth of a second
_MOST_PATH = 4096  # PATH_MAX of Linux: what is longer is no path


def check_escape(
    pod: Mapping[str, Any],
    containers: Iterable[tuple[str, Mapping[str, Any]]],
    host_paths: Collection[str] = (),
    *,
    host_pid: bool = False,
    by_kubelet: bool = False,
) -> None:
    """Raises BadRequest if one of ``containers`` of ``pod`` could leave its share.

    Each with what names it: spec.containers[0]. ``host_paths``: as `check_host_paths` lets them pass. ``host_pid``:
    whether a pod may be among the host's processes, as simulated GPUs need it. ``by_kubelet``: whether the kubelet
    mounts the hook, which cannot say that it is to be executed, and not a CDI file.
    """
    held = list(containers)
    if not held:
        return
    if by_kubelet and (field := _user_namespace(pod)) is not None:
        raise BadRequest(
            field,
            "keeps the loader from the hook where the node's files may not be executed, as in GKE's /var",
            hint="remove it, or offer the cluster's GPUs by claims: mode: dra",
        )
    check_mounts(container for _, container in held)
    # Below /proc, as their user, with no capability that containers have not.
    if pod["spec"].get("hostPID") and not host_pid:
        raise BadRequest(
            "spec.hostPID",
            "lets the container reach the files of other pods, the sockets of their shares among them",
            hint="remove it, or let a pod without a share do what needs it",
        )
    if (name := choosing_annotation(pod)) is not None:
        refuse_annotation(name)
    paths = {volume["name"]: (volume.get("hostPath") or {}).get("path") for volume in pod["spec"].get("volumes") or []}
    apart = functools.cache(_parts)  # any number of mounts may be of one long path
    refused = _HOST_CAPABILITIES | {name for kind, name in _SHARED_CAPABILITIES.items() if pod["spec"].get(kind)}
    for where, container in held:
        _check_settings(container, where, refused)
        for mount in container.get("volumeMounts") or []:
            _check_mount(mount, paths.get(mount["name"]), f"{where}.volumeMounts", apart, host_paths)
        for block in container.get("volumeDevices") or []:
            _check_mount({"mountPath": block["devicePath"]}, None, f"{where}.volumeDevices", apart, host_paths)
        if at := container.get("terminationMessagePath"):  # where the kubelet mounts a file
            _check_mount({"mountPath": at}, None, f"{where}.terminationMessagePath", apart, host_paths)


def choosing_annotation(pod: Mapping[str, Any]) -> str | None:
    """An annotation of ``pod`` by which a runtime, or a plugin of one, chooses devices; None if there is none."""
    for name in (pod.get("metadata") or {}).get("annotations") or {}:
        if name.startswith(_CHOOSING_ANNOTATIONS) or f".{name.partition('/')[0]}".endswith(_CHOOSING_DOMAINS):
            return str(name)
    return None


def _user_namespace(pod: Mapping[str, Any]) -> str | None:
    """What of ``pod`` asks for one; None if nothing does."""
    if pod["spec"].get("hostUsers") is False:
        return "spec.hostUsers"
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    found = (f"metadata.annotations[{name}]" for name in _USER_NAMESPACE_ANNOTATIONS if name in annotations)
    return next(found, None)


def refuse_annotation(name: str) -> NoReturn:
    """Raises BadRequest for one of those."""
    raise BadRequest(
        f"metadata.annotations[{name}]",
        "chooses devices by the runtime",
        hint="make the pod anew without it: gemlet chooses the GPU, and its sandbox keeps what it was made with",
    )


def check_host_paths(paths: Iterable[str], kept: Iterable[str] = ()) -> tuple[str, ...]:
    """Directories of nodes, as those that pods with a share may mount: none but these themselves, and by subPath, for
    which the kubelet follows no link, what is in them. For what is below may be a link that a pod made there.

    Raises GemletError if one is, contains or is in one of ``kept``, the node's own, or in another one, where a pod
    could put a link in its place.
    """
    found: list[str] = []
    for path in paths:
        if not path.startswith("/") or posixpath.normpath(path).replace("//", "/") != path.rstrip("/"):
            raise GemletError(f"{path} cannot be one of the host paths", hint="give a whole path, without . and ..")
        for other in (*_SYSTEM, *kept, *found):
            if _meets(_parts(path), _trees(other)):
                hint = "name directories of data, none in another one"
                raise GemletError(f"pods must not mount the host's {path}: {other} is there", hint=hint)
        found.append(path.rstrip("/"))
    return tuple(found)


def check_mounts(containers: Iterable[Mapping[str, Any]]) -> None:
    """Raises BadRequest for more mounts than are looked at: who looks, others wait for."""
    kinds = ("volumeMounts", "volumeDevices")
    mounts = sum(len(container.get(kind) or []) for container in containers for kind in kinds)
    if mounts > MOST_MOUNTS:
        raise BadRequest(
            "spec.containers",
            f"{mounts} mounts are too many to be checked",
            hint="mount one directory in place of many",
        )


def is_counted(container: Mapping[str, Any]) -> bool:
    """Whether a container asks for a share by a resource: a slot, or units."""
    resources = container.get("resources") or {}
    return any(name in (resources.get(kind) or {}) for kind in ("limits", "requests") for name in names.RESOURCES)


def check_counted(
    pod: Mapping[str, Any], name: str, host_paths: Collection[str] = (), *, host_pid: bool = False
) -> None:
    """As `check_escape`, of the container ``name``, which the kubelet says has devices, and of all that ask for some.

    The kubelet gives an init container's devices to another container of the pod, and names only that one.
    """
    containers = list(pod["spec"].get("containers") or [])
    for number, container in enumerate(pod["spec"].get("initContainers") or []):
        if is_counted(container):
            refuse_init_container(number)
    held = [
        (f"spec.containers[{number}]", container)
        for number, container in enumerate(containers)
        if container["name"] == name or is_counted(container)
    ]
    check_escape(pod, held, host_paths, host_pid=host_pid, by_kubelet=True)


def refuse_init_container(number: int) -> NoReturn:
    """Raises BadRequest: its devices become another container's, and a share is one container's."""
    raise BadRequest(f"spec.initContainers[{number}].resources", "asks for a share", hint="ask for it in a container")


def _check_settings(container: Mapping[str, Any], where: str, refused: Collection[str]) -> None:
    """``refused``: capabilities."""
    for variable in container.get("env") or []:
        if variable["name"] in _FORBIDDEN_ENV or variable["name"].startswith(_FORBIDDEN_ENV_PREFIXES):
            raise BadRequest(
                f"{where}.env[{variable['name']}]",
                "would let the program escape from its share",
                hint="remove it: gemlet sets it",
            )
        if variable["name"] == _TUNABLES and _may_be_secure(variable):
            raise BadRequest(
                f"{where}.env[{_TUNABLES}]",
                "could let the program escape from its share: glibc.rtld.enable_secure preloads nothing",
                hint="leave enable_secure out, and write the value itself: without valueFrom and $(...)",
            )
    security = container.get("securityContext") or {}
    for name in (security.get("capabilities") or {}).get("add") or []:
        if name.upper().removeprefix("CAP_") in refused:
            raise BadRequest(
                f"{where}.securityContext.capabilities.add",
                f"{name} gives the container access to the host",
                hint="remove it, or let a container without a share do what needs it",
            )
    if security.get("privileged"):
        raise BadRequest(
            f"{where}.securityContext.privileged",
            "gives the container access to all GPUs",
            hint="remove it, or add the capabilities that are needed",
        )


def _may_be_secure(variable: Mapping[str, Any]) -> bool:
    value = variable.get("value") or ""
    return _SECURE in value or "$(" in value or bool(variable.get("valueFrom"))


def _check_mount(
    mount: Mapping[str, Any],
    path: str | None,
    where: str,
    apart: Callable[[str], tuple[str, ...]],
    host_paths: Collection[str],
) -> None:
    """``path``: of the host, None for what is not of the host."""
    if max(len(mount["mountPath"]), len(path or "")) > _MOST_PATH:
        raise BadRequest(where, f"has a path of more than {_MOST_PATH} bytes", hint="mount what has a shorter one")
    at = mount["mountPath"]
    if _meets(apart(at), _OWN_TREES):
        raise BadRequest(f"{where}[{at}]", "hides files that gemlet mounts there", hint="mount it elsewhere")
    if _meets(apart(at), _CHOOSING_TREES):
        raise BadRequest(f"{where}[{at}]", "chooses GPUs by NVIDIA's runtime", hint="remove it: gemlet chooses the GPU")
    # What comes before .. may be a link in the image, as /var/run is one.
    if _meets(apart(at), _LINK_TREES) or ".." in at.split("/"):
        raise BadRequest(
            f"{where}[{at}]", "may be a way to files that gemlet mounts", hint="mount it outside /proc, without .."
        )
    if path is not None and path.rstrip("/") not in host_paths:
        known = ", ".join(host_paths) or "none so far"
        raise BadRequest(
            f"{where}[{at}]",
            f"mounts the host's {path}",
            hint=f"mount a directory that the chart's hostPaths name ({known}), with subPath for what is in it, "
            "or a PersistentVolume",
        )


def _meets(parts: tuple[str, ...], trees: _Trees) -> bool:
    """Whether a path of these names is, contains or is in one of ``trees``, however it is spelt."""
    return any(parts[: len(tree)] == tree[: len(parts)] for tree in trees)
