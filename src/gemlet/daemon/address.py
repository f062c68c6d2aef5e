"""Where a daemon lives: one runtime directory with its sockets, lock and log.

Everything else finds a daemon through an `Endpoint`. This module and `connection` are on the path of `gemlet run`, so
they import nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gemlet import paths
from gemlet.errors import GemletError

if TYPE_CHECKING:
    import os

Kind = Literal["user", "system", "simulated", "explicit"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One daemon's runtime directory. ``kind`` says which of the possible daemons it is.

    ``unusable``: why nobody may look for a daemon there.
    """

    directory: Path
    kind: Kind
    unusable: GemletError | None = field(default=None, compare=False)

    @property
    def api(self) -> Path:
        """The stream socket of the API: JSON lines."""
        return Path(paths.api_path(str(self.directory)))

    @property
    def clients(self) -> Path:
        """The socket the hook connects to (SOCK_SEQPACKET, native/wire.h)."""
        return Path(paths.socket_path(str(self.directory)))

    @property
    def lock(self) -> Path:
        """Held (lock.py) by the one daemon of this directory; contains its pid."""
        return self.directory / "daemon.lock"

    def is_expected(self) -> bool:
        """Whether a daemon of this directory lives or was killed: one that ends by itself leaves an empty lock."""
        try:
            return self.lock.stat().st_size > 0
        except OSError:
            return False

    @property
    def log(self) -> Path:
        """What a daemon that `gemlet run` started writes."""
        return self.directory / "daemon.log"

    @property
    def web_link(self) -> Path:
        """The link, with its token, of the page that the daemon started; for the daemon's own user."""
        return self.directory / "web.link"

    @property
    def state(self) -> Path:
        """The groups made by `gemlet run`, so that a restarted daemon knows them."""
        return self.directory / "groups.json"

    @property
    def members(self) -> Path:
        """The programs that use devices, and what they hold there, so that a restarted daemon counts it."""
        return self.directory / "members.json"

    @property
    def mps(self) -> Path:
        """The daemon's MPS control daemon: its pipes, its log, and what was meant with it."""
        return self.directory / "mps"

    @property
    def machine(self) -> Path:
        """The simulated machine's shared files (GEMLET_SIM_DIR); only where ``kind`` is simulated."""
        return self.directory / "machine"


def system() -> Endpoint:
    """The daemon an administrator starts with `gemlet daemon --system`."""
    return Endpoint(Path(paths.system_runtime_dir()), "system")


def user() -> Endpoint:
    """The calling user's own daemon."""
    return Endpoint(Path(paths.runtime_dir()), "user")


def simulated() -> Endpoint:
    """The calling user's daemon of the simulated machine; a directory of its own, so it never mixes with real GPUs."""
    return Endpoint(Path(paths.runtime_dir(), "sim"), "simulated")


def explicit(path: str | os.PathLike[str]) -> Endpoint:
    """The daemon at ``path``: its runtime directory or any socket in it."""
    given = Path(path).absolute()
    directory = given.parent if given.suffix == ".sock" or given.is_socket() else given
    kind: Kind = "simulated" if (directory / "machine").is_dir() else "explicit"
    return Endpoint(directory, kind)


def candidates(socket: str | None = None, *, simulate: bool = False) -> list[Endpoint]:
    """Where to look for a daemon, best first.

    One of this user's own that was started in a session counts outside of it, too, and the other way round: two would
    promise the same device twice. Where this user's directory cannot be used, the system's daemon is found all the
    same: another user can take the name of the directory, and a disk can be full. ``socket`` (from --socket or
    GEMLET_SOCKET) names the only one; a simulated machine has only its own daemon.
    """
    named = explicit(socket) if socket else None
    if named is not None and (named.kind == "simulated" or not simulate):
        return [named]
    if simulate:  # also inside a program that runs on real devices, whose GEMLET_SOCKET names their daemon
        return [simulated()]
    other = paths.other_runtime_dir()
    return [system(), *([Endpoint(Path(other), "user")] if other else []), _own()]


def _own() -> Endpoint:
    try:
        return user()
    except GemletError as error:
        return Endpoint(Path(paths.runtime_path()), "user", unusable=error)
