"""Shared memory of clients, who may do with it what they like while the server reads and writes it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import struct
import threading
import uuid
from pathlib import Path
from unittest import mock

import pytest

from gemlet.inference_protocol import inference_pb2
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import infer_messages, region_write, unpacking
from gemlet.serve.server.frontend import regions as module
from gemlet.serve.server.frontend.limits import SPARE_FILES, Limits
from gemlet.serve.server.frontend.regions import FOLDER, Regions, SystemRegion
from tests.unit.serve.server.frontend.test_http import post
from tests.unit.serve.stand_in import Service, connect, model, replies


def mine(shared=None):
    """Regions as a client of this user sees them."""
    return (shared or Regions()).of(os.getuid)


def read(regions, region, offset, nbytes):
    """The bytes there, as an input has them."""
    place = {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": nbytes}
    tensor = regions.tensor("X", "UINT8", [nbytes], place)
    asyncio.run(regions.read([tensor]))
    return bytes(tensor.data)


def write(regions, region, offset, data):
    asyncio.run(regions.write([(region, offset, data)]))


def register(regions, *given):
    asyncio.run(regions.register(*given))


def unregister(regions):
    """All of them, and waits until they are closed."""

    async def run():
        await regions.unregister(SystemRegion)
        while regions._shared._ending:
            await asyncio.wait(regions._shared._ending)

    asyncio.run(run())


def put(descriptor, start, data):
    """As a process of the server's writes."""
    whole = (ctypes.c_char * len(data)).from_buffer_copy(data)
    region_write.write(descriptor, start, ctypes.addressof(whole), len(data))


@pytest.fixture
def shared():
    """A shared memory object of 16 bytes: its key and its descriptor."""
    key = f"gemlet-test-{uuid.uuid4().hex}"
    descriptor = os.open(FOLDER / key, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(descriptor, bytes(range(16)))
    yield key, descriptor
    os.close(descriptor)
    (FOLDER / key).unlink(missing_ok=True)


def test_parts_are_read_and_written(shared):
    key, descriptor = shared
    regions = mine()
    register(regions, "r", f"/{key}", 4, 8)
    assert read(regions, "r", 2, 3) == bytes([6, 7, 8])
    write(regions, "r", 6, b"ab")
    assert os.pread(descriptor, 16, 0)[9:13] == bytes([9]) + b"ab" + bytes([12])
    for offset, nbytes in ((0, 9), (8, 1), (-1, 2), (0, -1)):
        with pytest.raises(Refusal, match="not within region"):
            read(regions, "r", offset, nbytes)


def test_memory_that_its_owner_makes_smaller_is_refused_and_ends_nobody(shared):
    key, descriptor = shared
    regions = mine()
    register(regions, "r", key, 0, 16)
    os.ftruncate(descriptor, 8)
    for use in (lambda: read(regions, "r", 0, 16), lambda: write(regions, "r", 0, bytes(16))):
        with pytest.raises(Refusal, match="became smaller"):
            use()
    assert os.fstat(descriptor).st_size == 8


def test_no_client_that_locks_its_memory_keeps_the_server_from_writing(shared):
    key, descriptor = shared
    regions = mine()
    register(regions, "r", key, 0, 16)
    with writing_for_ever(descriptor):
        using = threading.Thread(target=lambda: (write(regions, "r", 2, b"ab"), read(regions, "r", 0, 9)), daemon=True)
        using.start()
        using.join(60)
        assert not using.is_alive()
    assert os.pread(descriptor, 3, 1) == b"\1ab"


@pytest.mark.parametrize("forbidden", [None, errno.EPERM, errno.ENOSYS])
def test_what_is_written_is_there_or_refused_whatever_the_system_forbids(shared, monkeypatch, forbidden):
    def forbid(*_):
        ctypes.set_errno(forbidden)
        return -1

    if forbidden:
        monkeypatch.setattr(region_write, "_libc", mock.Mock(process_vm_writev=forbid))
    data = os.urandom(region_write.PIECE_BYTES + 3 * mmap.PAGESIZE)
    os.ftruncate(shared[1], 3 + len(data))
    put(shared[1], 3, data)
    assert os.pread(shared[1], len(data), 3) == data
    mapping = mmap.mmap

    def cut(descriptor, *given, **more):
        mapped = mapping(descriptor, *given, **more)
        os.ftruncate(descriptor, region_write.PIECE_BYTES + mmap.PAGESIZE)
        return mapped

    monkeypatch.setattr(mmap, "mmap", cut)
    with pytest.raises(OSError, match="File too large"):
        put(shared[1], 3, data)


@contextlib.contextmanager
def writing_for_ever(descriptor):
    """A process is in write(2) of that file, from memory whose pages never come."""
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(323, os.O_CLOEXEC)  # userfaultfd
    if faults < 0:
        pytest.skip("needs userfaultfd, which is root's")
    telling, told = os.pipe()
    child = os.fork()
    if not child:
        memory = mmap.mmap(-1, mmap.PAGESIZE)
        faults = libc.syscall(323, os.O_CLOEXEC)  # of this process's memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        fcntl.ioctl(faults, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))  # UFFDIO_API
        fcntl.ioctl(faults, 0xC020AA00, struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0))  # UFFDIO_REGISTER
        threading.Thread(target=libc.pwrite, args=(descriptor, ctypes.c_void_p(address), 1, 0), daemon=True).start()
        select.select([faults], [], [])
        os.write(told, b".")
        signal.pause()
    os.close(faults)
    try:
        os.read(telling, 1)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(telling)
        os.close(told)


def test_what_was_read_does_not_change_any_more(shared):
    key, descriptor = shared
    regions = mine()
    register(regions, "r", key, 0, 16)
    tensor = regions.tensor("X", "UINT8", [2], {"shared_memory_region": "r", "shared_memory_byte_size": 2})
    asyncio.run(regions.read([tensor]))
    os.pwrite(descriptor, b"xx", 0)
    assert bytes(tensor.data) == bytes([0, 1])


@pytest.mark.parametrize("key", ["", "/", "..", "../x", "a/b", "a\0b", "gemlet-no-such", "x" * 300])
def test_a_body_that_is_not_an_object_is_refused(key):
    with pytest.raises(Refusal):
        register(mine(), "r", key, 0, 1)


def test_links_are_not_followed(shared, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(16))
    link = FOLDER / f"gemlet-test-{uuid.uuid4().hex}"
    link.symlink_to(tmp_path / "secret")
    try:
        with pytest.raises(Refusal, match="cannot be opened"):
            register(mine(), "r", link.name, 0, 16)
    finally:
        link.unlink()


def test_their_number_and_their_bytes_have_limits(shared, monkeypatch):
    monkeypatch.setattr(module, "MAX_REGIONS", 2)
    regions = mine()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(Refusal, match="has a name"):
        register(regions, "", shared[0], 0, 1)
    with pytest.raises(Refusal, match="256 bytes: expected at most 255"):
        register(regions, "n" * 254 + "ä", shared[0], 0, 1)
    with pytest.raises(Refusal, match="256 bytes: expected at most 255"):
        asyncio.run(regions.register_device("n" * 256, b"", 0, 1))
    register(regions, "a", shared[0], 0, 1)
    register(regions, "b", shared[0], 0, 1)
    with pytest.raises(Refusal, match="2 shared memory regions"):
        register(regions, "c", shared[0], 0, 1)
    with pytest.raises(Refusal, match="fewer than 17"):
        register(mine(), "c", shared[0], 1, 16)
    unregister(regions)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    much = {"shared_memory_region": "a", "shared_memory_byte_size": module.MAX_READ_BYTES}
    regions.check_sizes([much, {}])
    with pytest.raises(Refusal, match="expected at most"):
        regions.check_sizes([much, much | {"shared_memory_byte_size": 1}, much | {"shared_memory_byte_size": -5}])


@pytest.mark.parametrize("files", [1024, 4096, 1 << 20])
def test_clients_keep_the_files_that_connections_need(shared, monkeypatch, files):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(module, "MAX_REGIONS", 100)
    connections = Limits().connections_of_each()
    assert connections >= min(4096, files // 4)
    regions, taken = mine(), min(100, files // 8 // 2)
    for number in range(taken):
        register(regions, str(number), shared[0], 0, 1)
    with pytest.raises(Refusal, match="shared memory regions are registered") as refused:
        register(regions, "more", shared[0], 0, 1)
    assert refused.value.reason == "overload"
    assert 2 * connections + taken + SPARE_FILES <= files
    unregister(regions)


OTHER = 4321  # a uid that is not this one


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")
def test_regions_are_closed_also_where_no_thread_can_be_started_for_that_at_first(shared, monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    regions = mine()
    before = len(list(Path("/proc/self/fd").iterdir()))
    register(regions, "a", shared[0], 0, 1)
    start, tries = threading.Thread.start, iter([RuntimeError("can't start new thread")] * 2)

    def started(thread):
        for error in tries:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    unregister(regions)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_objects_of_others_are_refused(shared):
    key, descriptor = shared
    os.fchown(descriptor, OTHER, OTHER)  # root may open it all the same
    with pytest.raises(Refusal, match="belongs to another user"):
        register(mine(), "r", key, 0, 16)


def test_regions_of_others_are_not_seen(shared):
    key, _ = shared
    regions = Regions()
    register(mine(regions), "r", key, 0, 16)
    other = regions.of(lambda: OTHER)
    assert other.status(SystemRegion) == []
    with pytest.raises(Refusal, match="no shared memory region"):
        read(other, "r", 0, 1)
    with pytest.raises(Refusal, match="no shared memory region"):
        write(other, "r", 0, b"x")
    with pytest.raises(Refusal, match="belongs to another user"):
        register(other, "mine", key, 0, 16)
    unregister(other)
    assert [region.name for region in mine(regions).status(SystemRegion)] == ["r"]
    unregister(mine(regions))


def test_a_client_whose_user_is_not_known_has_no_shared_memory(shared):
    unknown = Regions().of(lambda: None)
    with pytest.raises(Refusal, match="whose user it can see"):
        register(unknown, "r", shared[0], 0, 16)
    assert unknown.status(SystemRegion) == []


MIB = 1 << 20


@pytest.fixture
def reads(monkeypatch):
    """(bytes, thread) of each read of a region."""
    found, plain = [], os.preadv

    def preadv(descriptor, buffers, offset):
        count = plain(descriptor, buffers, offset)
        if "memfd:" not in str(Path(f"/proc/self/fd/{descriptor}").readlink()):  # which answers pass in
            found.append((count, threading.get_ident()))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return found


def asking(nbytes, shape, datatype="FP32"):
    place = {"shared_memory_region": "r", "shared_memory_byte_size": nbytes}
    document = {"inputs": [{"name": "X", "datatype": datatype, "shape": shape, "parameters": place}]}
    return post("/v2/models/echo/infer", json.dumps(document).encode())


async def answers(shared, requests, *, unregistered=False, datatype="FP32"):
    """The replies to requests at once, about the region `r` of 4 MiB, and the most that a connection had in hand."""
    key, descriptor = shared
    os.ftruncate(descriptor, 4 * MIB)
    service = Service(model(inputs=(("X", datatype, (MIB // 4,)),), slo_ms=1e6))
    connection, transport = connect(service)
    connection.regions = service.regions.of(os.getuid)
    await connection.regions.register("r", key, 0, 4 * MIB)
    connection.data_received(b"".join(requests))
    if unregistered:
        await connection.regions.unregister(SystemRegion, "r")
    reading = transport.reading
    while connection._tasks:
        await asyncio.wait(connection._tasks)
    return [status for status, _, _ in replies(transport.written)], reading


@pytest.mark.parametrize(
    ("nbytes", "shape", "datatype"),
    [
        (4 * MIB, [1, 4], "FP32"),  # as many bytes as the shape does not have
        (4 * MIB, [1, MIB], "FP32"),  # which the model does not take
        (4 * MIB, [1, MIB // 2], "FP64"),
        (4 * MIB, [1, 2 * MIB], "BYTES"),  # too few for the lengths
        (4 * MIB, [1, MIB], "NONE"),
    ],
)
def test_nothing_is_read_for_a_request_that_is_refused_all_the_same(shared, reads, nbytes, shape, datatype):
    statuses, _ = asyncio.run(answers(shared, [asking(nbytes, shape, datatype)] * 50))
    assert statuses == [400] * 50
    assert sum(count for count, _ in reads) == 0


def test_a_message_whose_shape_has_other_bytes_is_refused_unread(shared, reads):
    regions = mine()
    register(regions, "r", shared[0], 0, 16)
    message = inference_pb2.ModelInferRequest(model_name="echo")
    one = message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    one.parameters["shared_memory_region"].string_param = "r"
    one.parameters["shared_memory_byte_size"].int64_param = 16
    with pytest.raises(Refusal, match="has 16 bytes"):
        infer_messages.parse(message, message.raw_input_contents, regions)
    one.shape[:] = [1, 4]
    ((tensor,), _, _) = infer_messages.parse(message, message.raw_input_contents, regions)
    assert not reads
    asyncio.run(regions.read([tensor]))
    assert bytes(tensor.data) == bytes(range(16))


def test_much_is_read_beside_the_loop_and_counts_as_what_was_sent(shared, reads):
    statuses, reading = asyncio.run(answers(shared, [asking(MIB, [1, MIB // 4])] * 3))
    assert statuses == [200] * 3
    assert sum(count for count, _ in reads) == 3 * MIB
    assert threading.get_ident() not in {thread for _, thread in reads}
    assert not reading


def test_text_that_waits_to_be_checked_is_not_here_yet(shared, reads, monkeypatch):
    """Of a user, one request at a time is in memory: a check takes much longer than to read."""
    here, most = [], []

    async def check(_processes, _peer, texts):
        most.append(sum(count for count, _ in reads) - sum(here))
        for _ in range(50):
            await asyncio.sleep(0)
        here.extend(len(each.data) for each in texts)
        for each in texts:
            each.checked = True

    monkeypatch.setattr(unpacking, "check", check)
    asyncio.run(answers(shared, [asking(MIB, [1, MIB // 4], "BYTES")] * 4, datatype="BYTES"))
    assert most == [MIB] * 4


def test_a_region_that_is_gone_when_its_turn_comes_is_not_read(shared, reads):
    statuses, _ = asyncio.run(answers(shared, [asking(MIB, [1, MIB // 4])] * 3, unregistered=True))
    assert statuses == [404] * 3
    assert not reads


def test_much_is_written_beside_the_loop(shared, monkeypatch):
    written, plain = [], region_write.write

    def write(descriptor, offset, address, nbytes):
        plain(descriptor, offset, address, nbytes)
        written.append((nbytes, threading.get_ident()))

    def to(region, offset, nbytes):
        place = {
            "shared_memory_region": region,
            "shared_memory_offset": offset,
            "shared_memory_byte_size": nbytes,
        }
        given = {"shared_memory_region": "r", "shared_memory_byte_size": MIB}
        one = {"name": "X", "datatype": "FP32", "shape": [1, MIB // 4], "parameters": given}
        document = {"inputs": [one], "outputs": [{"name": "Y", "parameters": place}]}
        return post("/v2/models/echo/infer", json.dumps(document).encode())

    os.pwrite(shared[1], b"seen", MIB - 4)
    monkeypatch.setattr(region_write, "write", write)
    requests = [to("r", 2 * MIB, MIB), to("r", 2 * MIB, MIB - 1), to("r", 4 * MIB - 1, MIB), to("none", 0, MIB)]
    statuses, _ = asyncio.run(answers(shared, requests))
    assert statuses == [200, 400, 400, 404]
    assert sum(count for count, _ in written) == MIB
    assert threading.get_ident() not in {thread for _, thread in written}
    assert os.pread(shared[1], 4, 3 * MIB - 4) == b"seen"


@pytest.fixture
def of_another(shared):
    """Its key and descriptor, of 4 MiB, which belong to another user."""
    if os.getuid():
        pytest.skip("giving a file to another user needs root")
    os.fchown(shared[1], OTHER, OTHER)
    os.ftruncate(shared[1], 4 * MIB)
    return shared


def with_theirs(key, work):
    """Does ``work`` with regions as that user sees them, with `r` that is all of it."""

    async def run():
        everybody = Regions()
        regions = everybody.of(lambda: OTHER)
        await regions.register("r", key, 0, 4 * MIB)
        try:
            await work(regions)
        finally:
            await regions.unregister(SystemRegion)
            await everybody.close()

    asyncio.run(run())


def writers():
    """The processes that write."""
    own = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for each in own for pid in each.read_text().split()]
    name = region_write.__file__.encode()
    return {pid for pid in pids if name in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("nbytes", [1, 3 * mmap.PAGESIZE, MIB + 7])
def test_files_of_others_are_written_by_a_process(of_another, monkeypatch, nbytes):
    key, descriptor = of_another
    monkeypatch.setattr(region_write, "write", mock.Mock(side_effect=AssertionError))
    first, second = os.urandom(nbytes), os.urandom(nbytes)

    async def work(regions):
        await regions.write([("r", 5, memoryview(first)), ("r", 5 + nbytes, second)])
        assert len(writers()) == 1
        assert os.pread(descriptor, 2 * nbytes, 5) == first + second
        os.ftruncate(descriptor, 4)
        with pytest.raises(Refusal, match="became smaller"):
            await regions.write([("r", 5, first)])

    with_theirs(key, work)


def test_the_process_goes_with_the_last_region_and_is_replaced_where_it_was_killed(of_another):
    key, descriptor = of_another

    async def work(regions):
        await regions.write([("r", 0, b"a")])
        (first,) = writers()
        os.kill(first, signal.SIGKILL)
        with pytest.raises(Refusal, match="cannot be written"):
            await regions.write([("r", 0, b"b")])
        await regions.write([("r", 0, b"c")])
        assert os.pread(descriptor, 1, 0) == b"c"

    with_theirs(key, work)
    assert not writers()


@pytest.mark.parametrize("does", ["reads", "writes", "closes"])
def test_a_user_whose_files_keep_the_server_waiting_keeps_nobody_else(of_another, monkeypatch, does):
    """As one does who frees the memory of gigabytes meanwhile."""
    key, there = of_another
    own = FOLDER / f"gemlet-test-{uuid.uuid4().hex}"
    own.write_bytes(bytes(16))
    go_on, plain = threading.Event(), {name: getattr(os, name) for name in ("preadv", "close")}

    def wait(name):
        def act(descriptor, *given):
            if os.path.sameopenfile(descriptor, there):
                assert go_on.wait(60)
            return plain[name](descriptor, *given)

        monkeypatch.setattr(os, name, act)

    async def others(regions):
        await regions.register("r", own.name, 0, 16)
        await regions.write([("r", 0, b"x")])
        tensor = regions.tensor("X", "UINT8", [1], {"shared_memory_region": "r", "shared_memory_byte_size": 1})
        await regions.read([tensor])
        assert bytes(tensor.data) == b"x"
        await regions.unregister(SystemRegion)

    async def work(regions):
        await regions.write([("r", 0, b"x")])
        (writer,) = writers()
        if does == "reads":
            wait("preadv")
            place = {"shared_memory_region": "r", "shared_memory_byte_size": 1}
            slow = asyncio.ensure_future(regions.read([regions.tensor("X", "UINT8", [1], place)]))
        elif does == "writes":
            os.kill(writer, signal.SIGSTOP)
            slow = asyncio.ensure_future(regions.write([("r", 0, b"y")]))
        else:
            wait("close")
            await regions.unregister(SystemRegion)
            (slow,) = regions._shared._ending
        try:
            await others(mine(regions._shared))
            assert not slow.done()
        finally:
            go_on.set()
            if does == "writes":
                os.kill(writer, signal.SIGCONT)
        await slow

    try:
        with_theirs(key, work)
    finally:
        own.unlink()
