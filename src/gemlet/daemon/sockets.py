"""The sockets that programs join through: the daemon's own, one for each share, one for each configured group.

Those of configured groups are in one directory, the IPC directory, named like the group (Gemini's second generation);
a/b, as namespace/pod, is b in a directory a.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.daemon.directory_trust import distrust
from gemlet.daemon.lock import remove_stale_socket
from gemlet.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Collection

    from gemlet.daemon.native import Server


class Sockets:
    """``shared``: other users' programs may connect to the daemon's own and those of configured groups."""

    def __init__(self, server: Server, *, ipc_dir: Path | None, shared: bool) -> None:
        self._server = server
        self._ipc_dir = ipc_dir
        self._shared = shared
        self._configured: dict[str, Path] = {}  # by group, in the IPC directory
        self._shares: set[str] = set()

    def listen(self, path: Path, *, group: str | None = None, mode: int | None = None) -> None:
        """Listens at ``path``, for one group or for all. ``mode``: None means those who may use the daemon.

        Raises DaemonError.
        """
        if "\0" in str(path):
            raise DaemonError(f"cannot listen at {str(path)!r}: a path has no NUL")
        if os.path.lexists(path) and not path.is_socket():  # the native server removes what is there
            raise DaemonError(
                f"cannot listen at {path}: there is a file of that name",
                hint="choose another directory, or move that file away",
            )
        if mode is None:
            mode = 0o666 if self._shared else 0o600
        try:
            self._server.listen(str(path), group=group, mode=mode)
        except (OSError, RuntimeError, ValueError) as error:  # the native server has std::system_error only
            hint = "choose a shorter directory: a socket's path has at most 107 bytes" if len(str(path)) > 107 else None
            raise DaemonError(f"cannot listen at {path}: {error}", hint=hint) from None

    def has_share(self, socket: str) -> bool:
        """Whether a share's socket is there and listened to."""
        return socket in self._shares and Path(socket).is_socket()

    def listen_for_share(self, name: str, socket: str) -> None:
        """Listens for the programs of a share. Raises DaemonError."""
        self._server.unlisten(socket)
        # A process that can reach the directory is in the group, whatever its uid: a container has the directory to
        # itself.
        self.listen(Path(socket), group=name, mode=0o666)
        self._shares.add(socket)

    def end_share(self, socket: str) -> None:
        """Listens there no more."""
        self._server.unlisten(socket)
        self._shares.discard(socket)

    def listen_for_configured(self, groups: Collection[str], *, inherited: Collection[str] = ()) -> list[str]:
        """Sockets in the IPC directory, for these groups and no others; returns warnings.

        ``inherited``: paths at which a daemon that hands over listens.
        """
        directory = self._ipc_dir
        if directory is None:
            return []
        for group in self._configured.keys() - set(groups):  # through it a client would join a group without limits
            self._stop_listening(self._configured.pop(group))
        return [warning for group in groups for warning in self._listen_for(group, directory, inherited)]

    def remove_configured(self) -> None:
        """Removes the sockets in the IPC directory, with directories that only they were in."""
        for path in self._configured.values():
            self._stop_listening(path)

    def _listen_for(self, group: str, directory: Path, inherited: Collection[str]) -> list[str]:
        path = directory / group
        if group in self._configured:
            return []
        if not {"", ".", ".."}.isdisjoint(group.split("/")):
            return [f"group {group} has a name that is no path: no socket in {directory}"]
        try:
            _check_trust(path.parent)
            path.parent.mkdir(mode=0o755 if self._shared else 0o700, parents=True, exist_ok=True)
            _check_trust(path.parent)  # what was not there may have been made by another
            if str(path) not in inherited:
                remove_stale_socket(path)
            self.listen(path, group=group)
        except (OSError, DaemonError) as error:
            return [f"group {group}: {error}"]
        self._configured[group] = path
        return []

    def _stop_listening(self, path: Path) -> None:
        self._server.unlisten(str(path))
        with contextlib.suppress(OSError):
            remove_stale_socket(path)  # the native server forgets its listeners when it stops
        for directory in path.parents:
            if directory == self._ipc_dir:
                return
            with contextlib.suppress(OSError):  # that of another group, too
                directory.rmdir()


def _check_trust(directory: Path) -> None:
    """Raises DaemonError where another user could put a socket in the place of the daemon's, and OSError."""
    reason = distrust(directory)
    if reason is not None:
        hint = "choose a directory that only root or you can change, with all those above it"
        raise DaemonError(f"no socket in {directory}: {reason}", hint=hint)
