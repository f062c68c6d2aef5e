"""Bodies whose memory goes back to the system piece by piece."""

from __future__ import annotations

import asyncio
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from gemlet.serve.server.frontend import grpc_wire, large_body
from gemlet.serve.server.frontend.large_body import PIECE_BYTES, LargeBody
from gemlet.turns import Turns
from tests.unit.serve.server.frontend.test_http_turns import turns_until

MIB = 1 << 20
ROOM = 8 * MIB


@pytest.fixture
def dropped(monkeypatch):
    """Begin and bytes of each piece that goes back, which it does."""
    found = []

    class Told(large_body._Memory):
        def madvise(self, advice, *piece):
            if advice == mmap.MADV_DONTNEED:
                found.append(piece)
            super().madvise(advice, *piece)

    monkeypatch.setattr(large_body, "_Memory", Told)
    return found


def body(nbytes=5 * MIB, room=ROOM):
    made = LargeBody(b"", room, Turns(asyncio.get_running_loop()), "peer")
    piece = bytes(range(256)) * 256
    for _ in range(nbytes // len(piece)):
        made.extend(piece)
    return made


def resident(data):
    """KiB of the mapping in which ``data`` is."""
    return int(of_mapping(data, "Rss").split()[0])


def of_mapping(data, field):
    place = np.frombuffer(data, np.uint8).ctypes.data
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        begin, dash, end = line.split()[0].partition("-")
        if dash and int(begin, 16) <= place < int(end, 16):
            return next(each for each in lines if each.startswith(f"{field}:")).partition(":")[2]
    raise LookupError(place)


def test_room_is_no_memory_before_something_is_there():
    async def run():
        made = body(MIB, 512 * MIB)
        assert len(made) == MIB
        assert resident(made.view()) < 4 * 1024
        assert bytes(made.view()) == bytes(range(256)) * 4096
        assert made[1:4] == b"\1\2\3"

    asyncio.run(run())


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_a_byte_takes_no_huge_page_where_a_system_has_them_everywhere():
    """Of 2 MiB: with 4096 connections that announced 64 MiB and sent two bytes the server had 8 GiB."""

    async def run():
        made = LargeBody(b"ab", 64 * MIB, Turns(asyncio.get_running_loop()), "peer")
        assert "nh" in of_mapping(made.view(), "VmFlags").split()
        made = body(20 * MIB, 64 * MIB)
        assert "nh" in of_mapping(made.view(), "VmFlags").split(), "also where it has moved"

    asyncio.run(run())


def test_who_sent_little_has_little_room():
    """What is only announced counts where memory is not overcommitted, as if it were taken."""

    async def run():
        made = LargeBody(b"ab", 64 * MIB, Turns(asyncio.get_running_loop()), "peer")
        assert len(made._memory) == MIB
        sent = bytes(range(256)) * 4096
        rooms = [len(made._memory)]
        for _ in range(63):
            made.extend(sent)
            assert len(made._memory) <= 16 * len(made)
            rooms.append(len(made._memory))
        assert len(set(rooms)) == 3, "it moves twice"
        assert rooms[-1] == 64 * MIB
        assert bytes(made.view()) == b"ab" + 63 * sent

    asyncio.run(run())


def test_where_it_cannot_grow_it_is_said_as_elsewhere(monkeypatch):
    def full(*_):
        raise OSError(12, "Cannot allocate memory")

    async def run():
        made = LargeBody(b"ab", 64 * MIB, Turns(asyncio.get_running_loop()), "peer")
        monkeypatch.setattr(large_body._Memory, "resize", full, raising=False)
        with pytest.raises(MemoryError):
            made.extend(bytes(2 * MIB))

    asyncio.run(run())


def test_it_goes_piece_by_piece_when_the_last_view_of_it_goes(dropped):
    async def run():
        made = body()
        data = np.frombuffer(made.view()[100:], np.uint8)
        del made
        assert not dropped
        assert data[0] == 100
        del data
        await turns_until(lambda: len(dropped) == 4)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert sorted(dropped) == [(at * PIECE_BYTES, PIECE_BYTES) for at in range(4)], "each once"


def test_what_has_gone_back_is_the_systems():
    async def run():
        memory = body(64 * MIB, 64 * MIB)._memory
        assert resident(memory) >= 64 * 1024
        places = [16 * MIB, 17 * MIB]
        memory._drop(places)
        memory._drop(places)
        assert resident(memory) <= 62 * 1024

    asyncio.run(run())


def test_a_thread_may_be_the_last_that_has_it(dropped):
    async def run():
        kept = [body()]
        await asyncio.to_thread(kept.clear)
        await turns_until(lambda: len(dropped) == 4)

    asyncio.run(run())


@pytest.mark.parametrize("where", ["here", "in a thread"])
def test_it_goes_at_once_where_the_loop_has_ended(dropped, where):
    async def run():
        return [body()]

    kept = asyncio.run(run())
    if where == "here":
        kept.clear()
    else:
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
    assert not dropped


def test_where_there_is_no_room_it_is_said_as_elsewhere(monkeypatch):
    def full(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    async def run():
        monkeypatch.setattr(large_body, "_Memory", full)
        with pytest.raises(MemoryError):
            body()

    asyncio.run(run())


@pytest.mark.parametrize("after", [0, 300])
def test_a_message_of_grpc_is_a_view_of_it(after):
    async def run():
        nbytes = 3 * MIB
        buffer = bytearray(b"\1" + nbytes.to_bytes(4, "big") + b"begin")
        assert grpc_wire.bytes_of_first(buffer) == nbytes
        made = LargeBody(buffer, ROOM, Turns(asyncio.get_running_loop()), "peer")
        assert grpc_wire.taken(made, nbytes) is None
        made.extend(bytes(nbytes - 5) + b"x" * after)
        compressed, message, rest = grpc_wire.taken(made, nbytes)
        assert (compressed, bytes(message[:6]), len(message), rest) == (True, b"begin\0", nbytes, b"x" * after)
        with pytest.raises(grpc_wire.TooLong):
            grpc_wire.taken(made, nbytes - 1)

    asyncio.run(run())


def test_pieces_are_whole_pages():
    assert PIECE_BYTES % mmap.PAGESIZE == 0
