"""Stand-ins for what surrounds the shares of a node."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.errors import DaemonUnreachable, Refused
from gemlet.kube import cdi
from gemlet.kube.api_server import ApiError
from gemlet.kube.book import ShareBook
from gemlet.kube.daemon_link import terms
from gemlet.kube.device_choices import DeviceChoices
from gemlet.kube.edits import Host
from gemlet.kube.inventory import Gpu
from gemlet.kube.permits import MAY_START, Permits
from gemlet.kube.pod_events import PodEvents
from gemlet.kube.pod_resources import Assignments
from gemlet.kube.pods import PodFollower
from gemlet.kube.reaper import Reaper
from gemlet.kube.request import Amounts
from gemlet.kube.share import Pod, Share, share_id_of_claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gemlet.kube.daemon_link import Terms

GIB = 1024**3
SLOT = "gemlet.dev/share"
FIRST = "GPU-00000000-0000-0000-0000-00000000000a"
SECOND = "GPU-00000000-0000-0000-0000-00000000000b"
GPUS = [
    Gpu(index=0, uuid=FIRST, name="NVIDIA H200 (simulated)", memory=80 * GIB, minor=0, pcie_root="pci0000:00", numa=0),
    Gpu(index=1, uuid=SECOND, name="NVIDIA H200 (simulated)", memory=80 * GIB, minor=1, compute_capability=(9, 0)),
]


ODD_OBJECTS: list[dict[str, Any]] = [{}, {"metadata": None}, {"metadata": []}, {"metadata": {"name": "x", "uid": 1}}]


class FakeDaemon:
    """Remembers the shares; ``busy`` groups cannot be removed, ``refused`` ones not be made, and with ``down`` nothing
    can be asked. ``asked``: the groups that were to be made."""

    def __init__(self) -> None:
        self.opened: dict[str, tuple[Amounts, str, int | None]] = {}
        self.terms: dict[str, Terms] = {}  # of those, or of what the test says
        self.busy: set[str] = set()
        self.refused: set[str] = set()
        self.asked: list[str] = []
        self.down = False

    async def open(self, share: Share, path: str, *, device: int | None) -> None:
        self._ask()
        self.asked.append(share.group)
        if share.group in self.refused:
            raise Refused(f"group {share.group} is refused")
        self.opened[share.group] = (share.amounts, path, device)
        self.terms[share.group] = terms(share, device)
        if not Path(path).exists():  # a socket like the daemon's stays until its file goes
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
                listener.bind(path)

    async def remove(self, group: str) -> None:
        self._ask()
        if group in self.busy:
            raise Refused(f"group {group} has clients")
        _, path, _ = self.opened.pop(group, (None, "", None))
        if path:
            Path(path).unlink(missing_ok=True)

    async def shares(self) -> dict[str, Terms]:
        self._ask()
        return {group: self.terms[group] for group in self.opened}

    async def status(self) -> dict[str, Any]:
        self._ask()
        return {"devices": []}

    def _ask(self) -> None:
        if self.down:
            raise DaemonUnreachable("no daemon at api.sock", hint="start one")


class Stuck:
    """A directory of which ``monkeypatch`` makes that no file can be removed, root or not, until ``mended``."""

    def __init__(self, directory: Path, monkeypatch: Any) -> None:
        self.mended = False
        self.tries = 0
        unlink = Path.unlink

        def tried(path: Path, missing_ok: bool = False) -> None:
            if path.parent == directory and not self.mended:
                self.tries += 1
                raise OSError(30, "Read-only file system", str(path))
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", tried)


def full_once(monkeypatch: Any) -> None:
    """The next CDI file cannot be written, as on a disk that is full; those after it can."""
    write, full = cdi.write, [28]

    def tried(*given: Any) -> bool:
        if full:
            raise OSError(full.pop(), "No space left on device")
        return write(*given)

    monkeypatch.setattr(cdi, "write", tried)


def one_socket_each(daemon: FakeDaemon, monkeypatch: Any) -> None:
    """From now on it refuses a group that it has at another socket."""
    opened = daemon.open

    async def strict(share: Share, path: str, *, device: Any) -> None:
        if daemon.opened.get(share.group, (None, path))[1] != path:
            raise Refused(f"there is a group {share.group} already")
        await opened(share, path, device=device)

    monkeypatch.setattr(daemon, "open", strict)


async def no_answer(path: str, **query: Any) -> Any:
    """In place of FakeApi.get, of an apiserver that is down."""
    raise ApiError("no answer", status=0)


class FakeApi:
    """Objects by path; what is not there is 404."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    async def get(self, path: str, **query: str) -> Any:
        if path not in self.objects:
            raise ApiError(f"GET {path}: 404 not found", status=404)
        return self.objects[path]

    def listed(self, path: str, **query: str) -> FakeListing:
        return FakeListing(self, path)

    async def watch(self, path: str, **query: str) -> AsyncIterator[tuple[str, Any]]:
        for event in ():
            yield event


class FollowedApi(FakeApi):
    """Remembers what is made there."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[tuple[str, Any]] = []

    async def create(self, path: str, body: Any) -> None:
        self.created.append((path, body))


class FakeListing:
    """A list of `FakeApi`."""

    version = "1"

    def __init__(self, api: FakeApi, path: str) -> None:
        self._api, self._path = api, path

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in (await self._api.get(self._path))["items"]:
            yield item


class FakeKubelet:
    """What the pod-resources API would say."""

    def __init__(self) -> None:
        self.holders: dict[tuple[str, str], Pod] = {}
        self.uids: dict[tuple[str, str], str] = {}

    async def assignments(self) -> Assignments:
        return Assignments(dict(self.holders), dict(self.uids))


class Node:
    """One node: directories below ``path``, a book that can be made anew as after a restart, and a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cdi = path / "cdi"
        self.shares = path / "shares"
        self.shares.mkdir()
        self.permits = path / "permits"
        self.daemon = FakeDaemon()
        self.now = 0.0
        self.book = self.restart()

    def restart(self) -> ShareBook:
        hook = "/var/lib/gemlet/hook/1/libgemhook.so.1"
        host = Host(hook=hook, shares=str(self.shares), permits=str(self.permits))
        file = self.path / "checkpoint.json"
        clock = lambda: self.now  # noqa: E731
        self.book = ShareBook(host, daemon=self.daemon, file=file, cdi_directory=self.cdi, clock=clock)
        self.book.gpus = {gpu.uuid: gpu for gpu in GPUS}
        return self.book

    def may_start(self, share_id: str = "claim-u1") -> set[str]:
        """The uids of the pods whose containers the runtime starts in a share."""
        files = (self.permits / share_id).glob("*") if cdi.is_there(self.cdi, share_id) else ()
        return {file.name for file in files if file.read_text() == MAY_START}

    def leftovers(self) -> list[str]:
        files = [*self.shares.iterdir(), *(self.cdi.iterdir() if self.cdi.exists() else ())]
        return sorted(path.name for path in files) + sorted(self.daemon.opened) + sorted(self.book.shares)


def amounts(memory: int = 16, compute: int = 25, limit: int | None = None) -> Amounts:
    return Amounts(memory=memory * GIB, compute=compute, limit=compute if limit is None else limit)


def claim_share(uid: str = "u1", gpus: tuple[str, ...] = (FIRST,), **changes: Any) -> Share:
    given = changes.pop("granted", amounts())
    return Share(
        id=share_id_of_claim(uid),
        group=changes.pop("group", f"default/{uid}"),
        gpus=gpus,
        granted=given,
        amounts=given,
        claim=("default", uid),
        claim_uid=uid,
        requests={f"gpu-{number}": ("gpu",) for number, _ in enumerate(gpus)},
        **changes,
    )


def slot_share(number: int = 0) -> Share:
    """Of a container of the pod `seen_pod`."""
    made = claim_share(f"s{number}", pod=Pod(namespace="default", name="p", container="c"))
    devices = {SLOT: (f"{FIRST}::{number}",)}
    return msgspec.structs.replace(made, claim=None, claim_uid="", requests={}, devices=devices)


def unit_share(number: int = 0) -> Share:
    nothing = Amounts(memory=0, compute=10, limit=10)
    name = f"units-{number}"
    return Share(
        id=name,
        group=name,
        gpus=(FIRST,),
        granted=nothing,
        amounts=nothing,
        devices={"gemlet.dev/compute-units": (name,)},
    )


def seen_pod(**given: str) -> dict[str, Any]:
    """With what is given for annotations: memory="8Gi"."""
    notes = {f"gemlet.dev/{name.replace('_', '-')}": value for name, value in given.items()}
    return {"metadata": {"namespace": "default", "name": "p", "uid": "u", "annotations": notes}, "spec": {}}


def follower(api: Any, node: Node) -> PodFollower:
    return PodFollower(
        api,
        node.book,
        "n1",
        events=PodEvents(api),
        choices=DeviceChoices(node.path / "choices.json"),
        permits=Permits(node.permits),
    )


def reaper(book: ShareBook, kubelet: Any, api: Any, *, young: float = 0) -> Reaper:
    return Reaper(book, kubelet, api, PodEvents(api), node="n1", young=young)
