"""What the agent puts on its node before the first share: the hook, for containers of any image, and directories.

DIRECTORY/checkpoint.json
DIRECTORY/device-choices.json   pods that chose devices by the runtime
DIRECTORY/agent.lock   held by the agent that is there
DIRECTORY/hook/DIGEST/libgemhook.so.1   one a version: what running programs have mapped is never written to again
DIRECTORY/hook/DIGEST/ld.so.preload     its path inside containers
DIRECTORY/hook/DIGEST/libgemhook.so.1.share    a share's socket inside containers, and patience in seconds
DIRECTORY/hook/DIGEST/gemlet-start-check        run by the runtime before a container of a claim starts
DIRECTORY/simulated/                    the simulated driver, where there are no GPUs
DIRECTORY/shares/ID/gemlet.sock
DIRECTORY/permits/                      which pods may start in which shares of claims (permits.py)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.kube import names
from gemlet.paths import HOOK_LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PERMITS = "permits"
# For the daemon, of programs in a share: a node ends its old one before it starts the next, and may be busy.
PATIENCE_SECONDS = 60


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Holds ``directory`` against other agents, each of which would remove the shares of the others as unknown to it.
    The kernel frees it on any death. Raises GemletError if another has it, OSError."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(directory / "agent.lock", flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GemletError(
                f"another agent has {directory}",
                hint="uninstall one of two installations, or wait for the agent that is ending",
            ) from None
        yield
    finally:
        os.close(descriptor)


def install_hook(library: Path, start_check: Path, directory: Path) -> Path:
    """Copies the hook and what checks containers before they start below ``directory``; returns the hook's copy. Raises
    OSError."""
    files = {
        HOOK_LIBRARY: library.read_bytes(),
        names.START_CHECK: start_check.read_bytes(),
        "ld.so.preload": f"{names.HOOK_DIRECTORY}/{HOOK_LIBRARY}\n".encode(),
        f"{HOOK_LIBRARY}{names.SHARE_SUFFIX}": (
            f"{names.SOCKET_DIRECTORY}/{names.SOCKET_NAME}\n{PATIENCE_SECONDS}\n".encode()
        ),
    }
    digest = hashlib.sha256(b"".join(files.values()))
    home = directory / "hook" / digest.hexdigest()[:16]
    copy = home / HOOK_LIBRARY
    # What is in them, too: a power cut may leave a file without, and a loader goes on without what it cannot load.
    if all(_has(home / name, content) for name, content in files.items()):
        return copy
    fresh = home.with_name(f".{home.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, content in files.items():
        (fresh / name).write_bytes(content)
        # Whatever the umask: a loader that may not read its preload file goes on without, too.
        (fresh / name).chmod(0o755 if name in (HOOK_LIBRARY, names.START_CHECK) else 0o644)
    shutil.rmtree(home, ignore_errors=True)  # incomplete, or it would have been found above
    fresh.rename(home)
    return copy


def _has(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def install_simulated(driver: Path, profiles: Path, directory: Path) -> tuple[Path, Path]:
    """Copies the simulated driver and its profiles below ``directory``; returns both copies. Raises OSError.

    The agent's own are in its image, which other containers do not see.
    """
    copies = (directory / "simulated" / "lib", directory / "simulated" / "profiles")
    for source, copy in zip((driver, profiles), copies, strict=True):
        copy.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            # By renaming: programs that run have the old ones mapped.
            fresh = copy / f".{file.name}.new"
            shutil.copy(file, fresh)
            fresh.rename(copy / file.name)
    return copies


def prepare(directory: Path) -> Path:
    """Makes ``directory`` and the directories of shares and permits in it; returns the former. Raises OSError.

    Only root may look into them, because a share's socket admits every process that reaches it.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in ("shares", PERMITS):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    return directory / "shares"


def check_runs_programs(directory: Path) -> None:
    """Raises GemletError if the node's runtime could run no program in ``directory``, so that no container of a claim
    would start."""
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise GemletError(
            f"{directory} is on a file system of the node that is mounted noexec, and the container runtime has to run "
            f"{names.START_CHECK} there",
            hint="give the chart another `directory`, such as /home/kubernetes/gemlet on GKE",
        )
