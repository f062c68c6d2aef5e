"""Shared memory that clients registered: inputs are read from it, outputs written into it.

A client reads and writes by the server's hand only what is its own: an object belongs to the user who is at the other
end of the connection, which the kernel tells for this machine (gemlet/peers.py). A client elsewhere has no
shared memory here. Regions of one user are not those of another, whatever their names.

It is read as a file, and written by the kernel (region_write.py): its owner may make it smaller at any time, and
touching a mapped page that is gone ends the process. A copy also keeps what was checked from changing before its batch
runs.

A client may hold up a thread that uses its file, in the kernel and for seconds: where it frees the file's memory, or is
slow at a page that it has locked; and who closes a file last frees all of it. So nothing is done with such a file in
the event loop, nor in a thread for which others wait: each user has threads, one for a large request and one for what
is small, and a process that writes. For a user who could end the server as well, what is small is read and written in
the event loop, and what is large in the loop's threads. A request of some bytes may name 64 MiB. It is read when
everything else about the request was checked.

A region may also be memory of a device (device_memory.py). Its handle does not tell whose memory it is, and opens what
the server's user has, so such regions are for clients of that user alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gemlet.daemon.fair_limit import may_take_another
from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal, Tensor, check
from gemlet.serve.server.frontend import limits, region_write, region_writer
from gemlet.serve.server.frontend.device_memory import DeviceMemory
from gemlet.serve.server.frontend.fair_turn import FairTurn
from gemlet.serve.server.frontend.region_writer import TooMany, Writers
from gemlet.serve.server.to_its_end import to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.served import ServedModel

FOLDER = Path("/dev/shm")  # where the C library's shm_open has its objects
MAX_REGIONS = 1024  # of a user
MAX_NAME_BYTES = 255  # of a region: a status of all has all their names
AGAIN_S = 1.0  # between tries to close what was unregistered
MAX_READ_BYTES = 64 * 1024**2  # by one request: as much as a body may have


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """``offset`` and ``nbytes``: the part of the object that was registered."""

    name: str
    key: str
    offset: int
    nbytes: int
    descriptor: int

    def opened(self) -> Opened:
        """Raises Refusal."""
        return Opened(self)

    def end(self) -> None:
        """Takes time."""
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """The first ``nbytes`` of memory of a device. ``number``: what ``memory`` knows it by."""

    name: str
    device: int
    nbytes: int
    number: int
    memory: DeviceMemory

    def opened(self) -> OpenedDevice:
        return OpenedDevice(self)

    def end(self) -> None:
        self.memory.forget(self.number)


Region = SystemRegion | DeviceRegion
Kind = TypeVar("Kind", SystemRegion, DeviceRegion)
Result = TypeVar("Result")


@dataclass(slots=True)
class SharedTensor(Tensor):
    """An input in shared memory; its ``data`` is empty until read() of its client's regions."""

    region: str = ""
    offset: int = 0
    nbytes: int = 0


class Regions:
    """Of all users. ``allowed`` False refuses all; ``read_bytes``: that one request may read."""

    def __init__(self, *, allowed: bool = True, read_bytes: int = MAX_READ_BYTES) -> None:
        self.allowed = allowed
        self.read_bytes = read_bytes
        self.users: dict[int, dict[str, Region]] = {}
        self.writers = Writers()
        self.device_memory = DeviceMemory()
        self._turns: dict[tuple[int | None, bool], FairTurn] = {}  # by user, and whether for what is small
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, find_user: Callable[[], int | None]) -> UserRegions:
        """Those of a client. ``find_user``: its uid, asked for once and only if shared memory is; None: not known."""
        return UserRegions(self, find_user)

    def count(self) -> int:
        """How many are registered."""
        return sum(map(len, self.users.values()))

    async def close(self) -> None:
        """Ends the processes that have device memory, and that write."""
        self.device_memory.close()
        await self.writers.close()

    def turn_of(self, user: int | None, *, small: bool = False) -> AbstractAsyncContextManager[None]:
        """For one request of a user at a time."""
        return self._turns.setdefault((user, small), FairTurn()).of("")

    def end(self, user: int, regions: Sequence[Region]) -> None:
        """Closes what is registered no more."""
        if not self.users[user]:
            self.writers.end(user)

        async def end() -> None:
            while True:
                with contextlib.suppress(Refusal):  # there is no thread left
                    async with self.turn_of(user, small=True):
                        await to_its_end(in_thread(lambda: [region.end() for region in regions]))
                    return
                await asyncio.sleep(AGAIN_S)

        task = asyncio.ensure_future(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class UserRegions:
    """What one connection sees: regions by name, all of one user."""

    def __init__(self, shared: Regions, find_user: Callable[[], int | None]) -> None:
        self._shared = shared
        self._find_user = find_user
        self._user: int | None = None
        self._known = False

    @property
    def user(self) -> int | None:
        if not self._known:
            self._user, self._known = self._find_user(), True
        return self._user

    @property
    def _is_trusted(self) -> bool:
        """Whether the user could end the server, too: then its files may keep the server waiting."""
        return self.user in {0, os.geteuid()}

    def _in_thread(self, act: Callable[[], Result]) -> Awaitable[Result]:
        return asyncio.to_thread(act) if self._is_trusted else in_thread(act)

    @property
    def _regions(self) -> dict[str, Region]:
        return self._shared.users.get(self.user, {}) if self.user is not None else {}

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Raises Refusal."""
        user = self._may_register(name)
        plain = key.removeprefix("/")
        if not plain or "/" in plain or "\0" in plain or plain in {".", ".."}:
            raise Refusal("invalid", f"{key!r} is not the name of a POSIX shared memory object")
        if offset < 0 or nbytes <= 0:
            raise Refusal("invalid", f"a region of {nbytes} bytes at {offset} is not valid")
        await self._register(
            name, user, lambda: SystemRegion(name, key, offset, nbytes, _open(key, user, offset + nbytes))
        )

    async def register_device(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """``handle``: what cuIpcGetMemHandle gave the client, on the server's device of that index. Raises Refusal."""
        user = self._may_register(name)
        if user != os.geteuid():
            message = f"CUDA shared memory is for clients of the server's user, uid {os.geteuid()}: this one is {user}"
            raise Refusal("unsupported", message)
        if device < 0 or nbytes <= 0:
            raise Refusal("invalid", f"a region of {nbytes} bytes on device {device} is not valid")
        memory = self._shared.device_memory
        await self._register(
            name, user, lambda: DeviceRegion(name, device, nbytes, memory.open(handle, device, nbytes), memory)
        )

    async def _register(self, name: str, user: int, make: Callable[[], Region]) -> None:
        """``make`` takes time. Raises Refusal."""

        async def register() -> None:
            self._shared.users.setdefault(user, {})[name] = await in_thread(make)

        async with self._shared.turn_of(user, small=True):
            self._may_register(name)  # others may have been, meanwhile
            await to_its_end(register())

    def _may_register(self, name: str) -> int:
        """The client's uid. Raises Refusal."""
        if not self._shared.allowed:
            raise Refusal(
                "unsupported", "shared memory is switched off: the server was started with --no-shared-memory"
            )
        user = self.user
        if user is None:
            raise Refusal("unsupported", "shared memory is for clients on the server's machine, whose user it can see")
        if not name:  # which stands for all regions elsewhere
            raise Refusal("invalid", "a shared memory region has a name")
        if (nbytes := len(name.encode())) > MAX_NAME_BYTES:
            message = f"the name of a shared memory region has {nbytes} bytes: expected at most {MAX_NAME_BYTES}"
            raise Refusal("invalid", message)
        if name in self._regions:
            raise Refusal("invalid", f"the shared memory region {name!r} is registered already")
        if len(self._regions) >= MAX_REGIONS:
            raise Refusal("overload", f"{MAX_REGIONS} shared memory regions are registered; unregister some")
        theirs, taken, most = len(self._regions), self._shared.count(), limits.most_regions()
        if not may_take_another(most, taken=taken, theirs=theirs, kept=0, administers=False):
            message = f"{taken} of {most} shared memory regions are registered, {theirs} of them by this user"
            raise Refusal("overload", f"{message}; unregister some, or raise `ulimit -Hn` of the server")
        return user

    async def unregister(self, kind: type[Region], name: str = "") -> None:
        """The region of that kind and name, or all of the kind, when it is this user's turn: after those registered
        before."""
        async with self._shared.turn_of(self.user, small=True):
            found = [each for each in self._regions.values() if isinstance(each, kind) and name in ("", each.name)]
            if found and self.user is not None:
                for region in found:
                    del self._regions[region.name]
                self._shared.end(self.user, found)

    def status(self, kind: type[Kind], name: str = "") -> list[Kind]:
        """All regions of a kind, or the one of that name. Raises Refusal if there is none."""
        found = [region for region in self._regions.values() if isinstance(region, kind) and name in ("", region.name)]
        if name and not found:
            raise Refusal("unknown", f"there is no shared memory region {name!r}")
        return found

    def check_sizes(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Before anything is read: ``inputs`` are the parameters of each input of a request. Raises Refusal."""
        sizes = [given.get("shared_memory_byte_size") for given in inputs if "shared_memory_region" in given]
        total = sum(max(0, size) for size in sizes if isinstance(size, int))
        if total > self._shared.read_bytes:
            message = f"the inputs have {total} bytes in shared memory: expected at most {self._shared.read_bytes}"
            raise Refusal("invalid", message)

    def tensor(self, name: str, datatype: str, shape: Sequence[int], parameters: Mapping[str, Any]) -> SharedTensor:
        """An input that is yet to be read. Raises Refusal unless it is within a region and as large as its shape."""
        region = parameters.get("shared_memory_region")
        offset, nbytes = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size", 0)
        if not (isinstance(region, str) and isinstance(offset, int) and isinstance(nbytes, int)):
            raise Refusal("invalid", f"input {name!r}: its shared memory parameters are not valid")
        self._part(region, offset, nbytes)
        _check_size(name, datatype, shape, nbytes)
        return SharedTensor(name, datatype, tuple(shape), b"", region=region, offset=offset, nbytes=nbytes)

    async def read(
        self, inputs: Sequence[SharedTensor], check: Callable[[], Awaitable[None] | None] | None = None
    ) -> None:
        """Gives each its data, as the region has it now, when it is this user's turn, which lasts until ``check`` is
        done: what waits to be checked is not yet here. Raises Refusal."""
        small = sum([each.nbytes for each in inputs]) <= limits.HERE_BYTES
        async with self._shared.turn_of(self.user, small=small):
            with _reading():
                opened = self._opened_for(inputs)
                if small and self._is_trusted and all(isinstance(each, Opened) for each, _ in opened):
                    _fill(opened)
                else:
                    await to_its_end(self._in_thread(lambda: _fill(opened)))
            checking = check() if check is not None else None
            if checking is not None:
                await checking

    async def write(self, given: Sequence[tuple[str, int, Buffer]]) -> None:
        """Puts data into regions, at their offsets, when it is this user's turn. Raises Refusal."""
        for name, offset, data in given:
            self._part(name, offset, len(data))
        small = sum([len(data) for _, _, data in given]) <= limits.HERE_BYTES
        async with self._shared.turn_of(self.user, small=small):
            for name, offset, data in given:
                await to_its_end(self._put(name, offset, data))

    async def _put(self, name: str, offset: int, data: Buffer) -> None:
        region = self._part(name, offset, len(data))
        if isinstance(region, DeviceRegion):
            memory, number = region.memory, region.number
            await self._in_thread(lambda: memory.write(number, offset, data))
            return

        def place() -> tuple[int, int]:
            found = self._part(name, offset, len(data))  # as it is at that moment
            if not isinstance(found, SystemRegion):
                raise Refusal("unknown", f"there is no shared memory region {name!r}")
            return found.descriptor, found.offset + offset

        assert self.user is not None
        try:
            if not self._is_trusted:
                await self._shared.writers.write(self.user, place, data)
            elif len(data) <= limits.HERE_BYTES:
                _write(*place(), data)
            else:
                with contextlib.closing(region.opened()) as opened:
                    await self._in_thread(lambda: opened.put(region.offset + offset, data))
        except TooMany:
            message = f"the server writes into shared memory of {region_writer.MOST} other users"
            raise Refusal("overload", message, retry_s=1) from None
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise _shrunk(region) from None
            message = f"shared memory region {name!r} cannot be written: {error.strerror}"
            raise Refusal("failed", message) from None

    def _opened_for(self, inputs: Iterable[SharedTensor]) -> list[tuple[Opened | OpenedDevice, SharedTensor]]:
        """Raises Refusal; a region may be gone since the request came."""
        return [(self._part(each.region, each.offset, each.nbytes).opened(), each) for each in inputs]

    def _part(self, name: str, offset: int, nbytes: int) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise Refusal("unknown", f"there is no shared memory region {name!r}")
        if offset < 0 or nbytes < 0 or offset + nbytes > region.nbytes:
            raise Refusal("invalid", f"{offset} + {nbytes} bytes are not within region {name!r} of {region.nbytes}")
        return region


class Opened:
    """A region that stays open until the end of this object, also if it is unregistered meanwhile. Raises Refusal."""

    def __init__(self, region: SystemRegion) -> None:
        self._region = region
        self._descriptor = -1
        try:
            self._descriptor = os.dup(region.descriptor)
        except OSError as error:
            message = f"shared memory region {region.name!r} cannot be opened again: {error.strerror}"
            raise Refusal("failed", message) from None

    def __del__(self) -> None:
        self.close()

    def put(self, at: int, data: Buffer) -> None:
        """Raises OSError."""
        _write(self._descriptor, at, data)

    def fill(self, tensor: SharedTensor) -> None:
        """Raises Refusal."""
        data = np.empty(tensor.nbytes, np.uint8).data  # which is not set to 0 first
        done = 0
        while done < tensor.nbytes:
            count = os.preadv(self._descriptor, [data[done:]], self._region.offset + tensor.offset + done)
            if not count:
                raise _shrunk(self._region)
            done += count
        tensor.data = data

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OpenedDevice:
    """A region on a device; one that is unregistered meanwhile is closed after what was asked of it before."""

    def __init__(self, region: DeviceRegion) -> None:
        self._region = region

    def fill(self, tensor: SharedTensor) -> None:
        """Raises Refusal."""
        tensor.data = self._region.memory.read(self._region.number, tensor.offset, tensor.nbytes)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Errors of the system are the client's answer: there may be no descriptor left, or no memory."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise Refusal("failed", f"shared memory cannot be read: {error}") from None


def _fill(inputs: Sequence[tuple[Opened | OpenedDevice, SharedTensor]]) -> None:
    try:
        for opened, tensor in inputs:
            opened.fill(tensor)
    finally:
        for opened, _ in inputs:
            opened.close()


def _write(descriptor: int, start: int, data: Buffer) -> None:
    """Raises OSError."""
    if len(data):
        whole = np.frombuffer(data, np.uint8)
        region_write.write(descriptor, start, whole.ctypes.data, whole.nbytes)


def in_thread(act: Callable[[], Result]) -> asyncio.Future[Result]:
    """What ``act`` gives in a thread of its own, which may take its time: of the loop's there are few, and the end of
    the server waits for those. Raises Refusal."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def work() -> None:
        try:
            finish = partial(future.set_result, act())
        except Exception as error:  # noqa: BLE001  told to who asked
            finish = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if future.done() else finish())

    try:
        threading.Thread(target=work, name="shared memory", daemon=True).start()
    except RuntimeError as error:
        raise Refusal("failed", f"shared memory cannot be used: {error}") from None
    return future


def _open(key: str, user: int, least: int) -> int:
    """The descriptor of an object that belongs to ``user`` and has so many bytes at least. Takes time. Raises
    Refusal."""
    try:
        descriptor = os.open(FOLDER / key.removeprefix("/"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refusal("invalid", f"shared memory {key!r} cannot be opened: {error.strerror}") from None
    found = os.fstat(descriptor)
    try:
        if found.st_uid != user:
            raise Refusal("invalid", f"shared memory {key!r} belongs to another user than the client, uid {user}")
        if not stat.S_ISREG(found.st_mode):
            raise Refusal("invalid", f"{key!r} is not a POSIX shared memory object")
        if least > found.st_size:
            message = f"shared memory {key!r} has {found.st_size} bytes, fewer than {least}"
            raise Refusal("invalid", message)
    except Refusal:
        os.close(descriptor)
        raise
    return descriptor


def unread(inputs: Iterable[Tensor]) -> list[SharedTensor]:
    """Those in shared memory."""
    return [tensor for tensor in inputs if isinstance(tensor, SharedTensor)]


def check_unread(served: ServedModel, inputs: Sequence[Tensor]) -> None:
    """Raises Refusal if the model does not take inputs of these names, datatypes and shapes; counts that."""
    try:
        check(served.spec, [Tensor(each.name, each.datatype, each.shape, b"", checked=True) for each in inputs])
    except Refusal as refusal:
        served.statistics.arrived += 1
        served.statistics.refuse(refusal.reason, 0.0)
        raise


def _check_size(name: str, datatype: str, shape: Sequence[int], nbytes: int) -> None:
    """Raises Refusal unless a tensor of this shape may have so many bytes."""
    count = prod(shape)
    if datatype == "BYTES":
        fits, expected = nbytes >= count * tensors.LENGTH_BYTES, f"at least {count * tensors.LENGTH_BYTES}"
    elif datatype in tensors.ELEMENTS:
        size = tensors.nbytes(datatype, shape)
        fits, expected = nbytes == size, str(size)
    else:
        raise Refusal("invalid", f"input {name!r}: {datatype!r} is not a valid datatype")
    if not fits:
        message = f"input {name!r} has {nbytes} bytes; {datatype} {list(shape)} has {expected}"
        raise Refusal("invalid", message)


def _shrunk(region: SystemRegion) -> Refusal:
    return Refusal("invalid", f"shared memory {region.key!r} became smaller than its region {region.name!r}")
