"""The daemons of many hosts for one page: a tunnel to each over ssh, and what each said last.

`ssh -L` forwards a socket of this process's to the API socket of the other host's daemon, which sees the user who logs
in there. Nothing is asked that changes anything. Hosts are asked while somebody looks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.daemon.address import Endpoint, system
from gemlet.daemon.connection import connect
from gemlet.errors import DaemonUnreachable, GemletError, InvalidValue
from gemlet.monitor.reader import read_status

if TYPE_CHECKING:
    from gemlet.daemon.status import Status

EVERY = 5.0  # seconds between two questions to a host
LOOKED = 30.0  # seconds for which somebody who asked is taken to look
PATIENCE = 5.0  # seconds for an answer
AT_A_TIME = 16
MOST = 1000  # hosts
LAST_WORDS = 4000  # bytes of what an ssh says that are kept
SSH = ("-N", "-T", "-oBatchMode=yes", "-oExitOnForwardFailure=yes", "-oServerAliveInterval=15", "-oConnectTimeout=10")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """``directory`` of the daemon, on the host, or here if ``local``: somebody else forwards it."""

    name: str
    directory: str
    local: bool = False


def parse_hosts(text: str) -> list[HostSpec]:
    """``HOST``, ``HOST:DIRECTORY`` or ``NAME=DIRECTORY`` (here), separated by commas. Raises InvalidValue."""
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, here = item.partition("=")
        if equals:
            found.append(HostSpec(name, here, local=True))
        else:
            name, _, directory = item.partition(":")
            found.append(HostSpec(name, directory or str(system().directory)))
    names = [host.name for host in found]
    wrong = next((host for host in found if not host.name or host.name[0] == "-" or host.directory[:1] != "/"), None)
    if wrong or not found or len(found) > MOST or len(set(names)) < len(names):
        raise InvalidValue(
            f"{text[:60]!r} is no list of hosts: expected 1 to {MOST} different names, with absolute directories",
            hint="write --hosts gpu1,gpu2 or --hosts gpu1:/run/gemlet",
        )
    return found


@dataclass(slots=True)
class _Host:
    spec: HostSpec
    endpoint: Endpoint
    tunnel: subprocess.Popen[bytes] | None = None
    words: bytes = b""  # the last ones of its ssh
    said: dict[str, Any] | None = None  # summary of its last status
    seen: float | None = None  # seconds since 1970
    error: str | None = "not asked so far"
    due: float = 0.0
    busy: threading.Lock = field(default_factory=threading.Lock)


class Hosts:
    """Starts asking with the first question; `close` ends the tunnels."""

    def __init__(self, specs: list[HostSpec]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gemlet-web-"))
        self._hosts = {}
        for number, spec in enumerate(specs):
            directory = Path(spec.directory) if spec.local else self._folder / str(number)
            self._hosts[spec.name] = _Host(spec, Endpoint(directory, "explicit"))
        self._looked = 0.0
        self._wake, self._end = threading.Event(), False
        self._starts = threading.Lock()  # a tunnel, which is begun before the end and known to it, or not begun
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="hosts")
        threading.Thread(target=self._run, name="hosts", daemon=True).start()

    def overview(self) -> dict[str, Any]:
        """What each host said last, in the order of the names given. Asks for more."""
        self._looked = time.monotonic()
        self._wake.set()
        return {
            "hosts": [
                {"name": name, "seen": host.seen, "error": host.error, **(host.said or {})}
                for name, host in self._hosts.items()
            ]
        }

    def endpoint(self, name: str) -> Endpoint:
        """Where to ask a host. Raises KeyError for one that is not on the list."""
        self._looked = time.monotonic()
        return self._hosts[name].endpoint

    def close(self) -> None:
        """Ends what was started."""
        with self._starts:
            self._end = True
        self._wake.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for host in self._hosts.values():
            if host.tunnel is not None and host.tunnel.stderr is not None:
                host.tunnel.terminate()
                host.tunnel.wait()
                host.tunnel.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while not self._end:
            now = time.monotonic()
            if now - self._looked > LOOKED:
                self._wake.wait()
                self._wake.clear()
                continue
            for host in self._hosts.values():
                if host.due <= now and not host.busy.locked():
                    host.due = now + EVERY
                    with contextlib.suppress(RuntimeError):  # it is being closed
                        self._pool.submit(self._ask, host)
            self._wake.wait(0.5)
            self._wake.clear()

    def _ask(self, host: _Host) -> None:
        with host.busy:
            try:
                self._hear(host)
                self._connect(host)
                with connect([host.endpoint], timeout=PATIENCE) as daemon:
                    host.said = summary(read_status(daemon))
                host.seen, host.error = time.time(), None
            except (GemletError, OSError) as error:
                host.error = self._why(host) or str(error)

    def _connect(self, host: _Host) -> None:
        if host.spec.local or (host.tunnel is not None and host.tunnel.poll() is None):
            return
        host.endpoint.directory.mkdir(mode=0o700, exist_ok=True)
        host.endpoint.api.unlink(missing_ok=True)
        forward = f"-L{host.endpoint.api}:{host.spec.directory}/{host.endpoint.api.name}"
        with self._starts:
            if self._end:
                raise DaemonUnreachable("nobody asks any more")
            host.tunnel = _start(["ssh", *SSH, forward, "--", host.spec.name])
        assert host.tunnel.stderr is not None
        os.set_blocking(host.tunnel.stderr.fileno(), False)
        end = time.monotonic() + PATIENCE
        while (
            not host.endpoint.api.exists() and host.tunnel.poll() is None and time.monotonic() < end and not self._end
        ):
            time.sleep(0.05)

    def _why(self, host: _Host) -> str | None:
        """The last words of an ssh that has ended."""
        if host.tunnel is None or host.tunnel.poll() is None or host.tunnel.stderr is None:
            return None
        self._hear(host)
        words = host.words.decode(errors="replace").strip().splitlines()
        host.tunnel.stderr.close()
        host.tunnel, host.words = None, b""
        return f"ssh: {words[-1]}" if words else "ssh has ended"

    def _hear(self, host: _Host) -> None:
        """Takes what its ssh has said so far, and does not wait for more.

        An ssh says a line for each connection that the host's daemon does not take, and carries nothing while the pipe
        is full. One that shares its connection (ControlPersist) leaves behind a process that never closes the pipe.
        """
        if host.tunnel is None or host.tunnel.stderr is None:
            return
        with contextlib.suppress(BlockingIOError):
            while said := os.read(host.tunnel.stderr.fileno(), 65536):
                host.words = (host.words + said)[-LAST_WORDS:]


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise DaemonUnreachable("ssh is not installed", hint="install OpenSSH's client") from None


def summary(status: Status) -> dict[str, Any]:
    """A host in a line or two: its devices, and how many of its groups wait."""
    groups = [group for device in status.devices for group in device.groups if group.clients]
    return {
        "version": status.daemon.version if status.daemon else "",
        "simulated": status.simulated,
        "groups": len({group.name for group in groups}),
        "programs": sum(len(group.clients) for group in groups),
        "waiting": sum(any(client.state == "waits" for client in group.clients) for group in groups),
        "outside": len(status.outside),
        "devices": [
            {
                "index": device.index,
                "name": device.name,
                "busy": device.utilization,
                "share": device.share.get("10s"),
                "memory_used": device.memory_used,
                "memory_total": device.memory_total,
            }
            for device in status.devices
        ],
    }
