"""CDI files: what a container runtime does when a container asks for ``k8s.gemlet.dev/share=NAME``.

Beside them there is the file of `gemlet cdi generate`, with which people ask for ``gemlet.dev/group=NAME``.

Each claim has a file of its own, so that preparing and unpreparing touch nothing of another claim. The name of a device
holds the claim's uid and the device's name: names are unique over all files of a node, or the runtime refuses them.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any

from gemlet import whole_file
from gemlet.config.text_file import read_bytes
from gemlet.errors import ConfigError, UsageError
from gemlet.kube import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gemlet.kube.edits import Edits, Mount

# The oldest that has all we use: old runtimes refuse newer ones.
CDI_VERSION = "0.5.0"
_PREFIX = "gemlet.dev-"
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def device_id(share_id: str, device: str) -> str:
    """The full name by which a container asks for ``device`` as part of a share."""
    return f"{names.CDI_KIND}={share_id}-{device}"


def specification(
    share_id: str, devices: Iterable[str], edits: Edits, start_check: Sequence[str] = ()
) -> dict[str, Any]:
    """The file's content. What the share has in common stands once for all its devices.

    ``start_check``: a program of the node with its arguments, without whose consent no container starts.
    """
    path, *arguments = start_check or ("",)
    # As the runtime and not as the container: what the container has mounted hides nothing from it.
    check = [{"hookName": "createRuntime", "path": path, "args": [posixpath.basename(path), *arguments]}]
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.CDI_KIND,
        "devices": [
            # An entry needs an edit of its own to be valid.
            {"name": f"{share_id}-{device}", "containerEdits": {"env": [f"GEMLET_SHARE_ID={share_id}"]}}
            for device in devices
        ],
        "containerEdits": {**_edits(edits), **({"hooks": check} if start_check else {})},
    }


def groups(edits: Mapping[str, Edits]) -> dict[str, Any]:
    """The file that makes each group a device, by group. Raises `UsageError` for a name that a device cannot have."""
    for name in edits:
        if not is_device_name(name):
            raise UsageError(
                f"{name!r} cannot be the name of a CDI device: expected letters, digits and - _ . : between them",
                hint="give the group another name, or use `gemlet run` in the container",
            )
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.CDI_GROUP_KIND,
        "devices": [{"name": name, "containerEdits": _edits(each)} for name, each in edits.items()],
    }


def is_device_name(name: str) -> bool:
    """Whether the CDI specification allows ``name`` for a device."""
    return _DEVICE_NAME.fullmatch(name) is not None


def _edits(edits: Edits) -> dict[str, Any]:
    return {
        "env": [f"{name}={value}" for name, value in edits.env.items()],
        "deviceNodes": [{"path": node} for node in edits.device_nodes],
        "mounts": [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": _options(mount),
            }
            for mount in edits.mounts
        ],
    }


def _options(mount: Mount) -> list[str]:
    # With "exec" a runtime that cannot give it starts no container. Without, the loader could not map the hook, and
    # would go on without it.
    return [*(("bind", "ro") if mount.read_only else ("rbind", "rw")), *(("exec",) if mount.code else ())]


def path_of(directory: Path, share_id: str) -> Path:
    """Where the file of a share is."""
    return directory / f"{_PREFIX}{share_id}.json"


def write(directory: Path, share_id: str, content: dict[str, Any]) -> bool:
    """Writes a share's file, atomically; False if it was there just so. Raises OSError.

    The directory is made when it is gone: /var/run is emptied by a reboot, and by people.
    """
    return write_file(path_of(directory, share_id), content)


def write_file(path: Path, content: dict[str, Any]) -> bool:
    """As `write`, for a file of any name."""
    text = json.dumps(content, indent=1).encode()
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(OSError, ConfigError):  # a FIFO is not waited for
        if read_bytes(path, len(text)) == text:
            return False
    # Runtimes read *.json and *.yaml only, so not what is written beside it; and every one must be able to read it.
    whole_file.write(path, text, mode=0o644)
    return True


def remove(directory: Path, share_id: str) -> None:
    """Removes a share's file; nothing happens if there is none. Raises OSError."""
    try:
        path_of(directory, share_id).unlink(missing_ok=True)
    except OSError:  # of a read-only file system also where there is none
        if is_there(directory, share_id):
            raise


def is_there(directory: Path, share_id: str) -> bool:
    """Whether a share has a file: what cannot be looked at may be there."""
    try:
        path_of(directory, share_id).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def share_ids(directory: Path) -> set[str]:
    """The shares that have a file."""
    return {path.name.removeprefix(_PREFIX).removesuffix(".json") for path in directory.glob(f"{_PREFIX}*.json")}
