"""Where gemlet's own files are: the preloaded library, the daemon's sockets, and its configuration.

`gemlet run` imports this module before every program it starts, so it costs nothing: only ``os``, which Python has
loaded anyway, and plain strings, because importing ``pathlib`` alone takes several milliseconds.

    what            environment          default
    lib_dir         GEMLET_LIB_DIR       <package>/_lib
    runtime_dir     GEMLET_RUNTIME_DIR   $XDG_RUNTIME_DIR/gemlet if that is the user's, else /tmp/gemlet-<uid>
    state_dir       XDG_STATE_HOME       ~/.local/state/gemlet/<host>, /var/lib/gemlet of the system's daemon
    config          GEMLET_CONFIG        ~/.config/gemlet/gemlet.toml, /etc/gemlet/gemlet.toml

The directory of the system's daemon is fixed, so that every user finds it: /run/gemlet.

`open_regular` is for files of others: nobody knows what lies at their paths.
"""

from __future__ import annotations

import os
import stat

from gemlet.errors import ConfigError, GemletError

HOOK_LIBRARY = "libgemhook.so.1"
INJECTED = "injected"  # what programs get on their PYTHONPATH: nothing of gemlet's but these few files
SYSTEM_RUNTIME_DIR = "/run/gemlet"
SESSIONS = "/run/user"  # where a session's directory is; what cron or `su` starts is not told of it
SHARED = "/tmp"
SYSTEM_STATE_DIR = "/var/lib/gemlet"
SYSTEM_CONFIG = "/etc/gemlet/gemlet.toml"


def lib_dir() -> str:
    """Directory of the native libraries, absolute."""
    configured = os.environ.get("GEMLET_LIB_DIR")
    return os.path.abspath(configured or os.path.join(os.path.dirname(__file__), "_lib"))


def hook_path() -> str:
    """The library to preload, absolute. Raises GemletError when it has not been built, or no loader would load it from
    there: a program then goes on without it."""
    path = os.path.join(lib_dir(), HOOK_LIBRARY)
    _require_file(path)
    why = None
    if not os.access(path, os.R_OK):
        why = "cannot be read"
    elif os.statvfs(path).f_flag & os.ST_NOEXEC:
        why = "is on a file system from which nothing is executed (noexec)"
    if why is not None:
        hint = "install gemlet elsewhere, or set GEMLET_LIB_DIR to a copy of its _lib directory"
        raise GemletError(f"{path} {why}: the dynamic loader would leave the hook out", hint=hint)
    return path


def start_check_path() -> str:
    """What Kubernetes nodes run before a container starts, absolute. Raises GemletError when it has not been built."""
    path = os.path.join(lib_dir(), "gemlet-start-check")
    _require_file(path)
    return path


def prepended(path: str, present: str) -> str:
    """``path`` before what a variable such as LD_PRELOAD has already, and once only."""
    return os.pathsep.join([path, *(entry for entry in present.split(os.pathsep) if entry and entry != path)])


def injected_dir() -> str:
    """Directory with the `sitecustomize` that watches for PyTorch, absolute."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), INJECTED)


def sim_dir() -> str:
    """Directory of the simulated libcuda.so.1 and libnvidia-ml.so.1. Raises GemletError when they are not built."""
    path = os.path.join(lib_dir(), "sim")
    _require_file(os.path.join(path, "libcuda.so.1"))
    return path


def _require_file(path: str) -> None:
    if os.path.isfile(path):
        return
    hint = "run `make native` in a checkout, or reinstall gemlet; GEMLET_LIB_DIR names another directory"
    raise GemletError(f"{path} does not exist", hint=hint)


def system_runtime_dir() -> str:
    """Directory of the daemon that serves all users of this machine."""
    return SYSTEM_RUNTIME_DIR


def runtime_dir() -> str:
    """Directory of this user's daemon: sockets and its lock.

    The default is created when it is missing. A directory is used only if it belongs to this user and nobody else can
    write to it, and so is a session's: otherwise another user could put a socket there and pose as the daemon.
    Raises GemletError if there is no such directory.
    """
    path = runtime_path()
    _make_private(path)
    if not os.environ.get("GEMLET_RUNTIME_DIR"):
        _check_private(path)
    return path


def runtime_path() -> str:
    """Where `runtime_dir` is, whether it can be used or not."""
    configured = os.environ.get("GEMLET_RUNTIME_DIR")
    if configured:
        return os.path.abspath(configured)
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and _is_ours_alone(session):
        return os.path.join(os.path.abspath(session), "gemlet")
    return _without_session()


def _is_ours_alone(session: str) -> bool:
    """`su` and `sudo -E` leave the session of who calls them, and its owner can replace what others have in it."""
    try:
        _check_private(os.path.realpath(session))
    except (OSError, GemletError):
        return False
    return os.access(session, os.W_OK)


def _without_session() -> str:
    return f"{SHARED}/gemlet-{os.getuid()}"


def other_runtime_dir() -> str | None:
    """Where a daemon of this user may be that was started with a session, if this process has none, or without one.

    None if there is no such directory, if others may change it, or if GEMLET_RUNTIME_DIR names the one to use.
    """
    if os.environ.get("GEMLET_RUNTIME_DIR"):
        return None
    path = _without_session() if runtime_path() != _without_session() else f"{SESSIONS}/{os.getuid()}/gemlet"
    try:
        _check_private(path)
    except (OSError, GemletError):
        return None
    return path


def state_dir(*, system: bool) -> str:
    """Where a daemon keeps what outlives a reboot; not made here. Of a user it has the name of the host: homes are
    shared between hosts."""
    if system:
        return SYSTEM_STATE_DIR
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "gemlet", os.uname().nodename)


def _make_private(path: str) -> None:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        hint = "set GEMLET_RUNTIME_DIR to a directory you may write to"
        raise GemletError(f"cannot create {path}: {error.strerror}", hint=hint) from None


def _check_private(path: str) -> None:
    status = os.lstat(path)
    hint = f"remove {path}, or set GEMLET_RUNTIME_DIR to a directory of your own"
    if not stat.S_ISDIR(status.st_mode):
        raise GemletError(f"{path} is not a directory", hint=hint)
    if status.st_uid != os.getuid():
        raise GemletError(f"{path} belongs to another user (uid {status.st_uid})", hint=hint)
    if status.st_mode & 0o022:
        from gemlet.typed_command import quoted  # noqa: PLC0415  the path of `gemlet run` needs none of it

        raise GemletError(f"other users can write to {path}", hint=f"chmod 700 {quoted(path)}")


def socket_path(directory: str | None = None) -> str:
    """The clients' SOCK_SEQPACKET socket, in ``directory`` or in this user's runtime directory."""
    return os.path.join(directory or runtime_dir(), "gemlet.sock")


def api_path(directory: str | None = None) -> str:
    """The socket of the HTTP interface, in ``directory`` or in this user's runtime directory."""
    return os.path.join(directory or runtime_dir(), "api.sock")


def user_config_path() -> str:
    """Where a user's own configuration is looked for, and where `gemlet` writes a new one."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "gemlet", "gemlet.toml")


def config_path(option: str | None = None) -> str | None:
    """The configuration to use: ``option`` (--config), $GEMLET_CONFIG, the user's, the system's; None if none exists.

    A file that was asked for by name must exist: ConfigError otherwise.
    """
    for named, origin in ((option, "--config"), (os.environ.get("GEMLET_CONFIG"), "GEMLET_CONFIG")):
        if not named:
            continue
        path = os.path.abspath(os.path.expanduser(named))
        if not os.path.exists(path):
            raise ConfigError("no such file", path=path, hint=f"{origin} names it; check the spelling")
        return path
    for path in (user_config_path(), SYSTEM_CONFIG):
        if os.path.exists(path):
            return path
    return None


class NotRegularError(OSError):
    """A pipe, a device or a socket."""


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor for reading. Raises OSError, NotRegularError; who reads from a directory gets IsADirectoryError.

    It does not wait for the writer of a pipe, and no terminal becomes this process'.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise NotRegularError(f"{path} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
