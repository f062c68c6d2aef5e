"""Bodies whose memory goes back to the system piece by piece."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from gemlet import own_memory
from gemlet.serve.server.frontend.large_body import PIECE_BYTES, LargeBody
from gemlet.turns import Turns
from tests.unit.serve.server.frontend.test_http_turns import turns_until

MIB = 1 << 20


@pytest.fixture
def dropped(monkeypatch):
    found = []
    monkeypatch.setattr("gemlet.own_memory.drop", lambda place, nbytes: found.append((place, nbytes)))
    return found


def resident(place):
    """KiB of the mapping in which a place is."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        begin, dash, end = line.split()[0].partition("-")
        if dash and int(begin, 16) <= place < int(end, 16):
            return int(next(each for each in lines if each.startswith("Rss")).split()[1])
    raise LookupError(place)


def test_what_is_dropped_is_the_systems_again_while_the_buffer_is_there():
    whole = bytearray(64 * MIB)
    places = own_memory.pieces(whole, MIB)
    assert len(places) >= 63
    assert all(place % own_memory.PAGE == 0 for place in places)
    assert resident(places[5]) >= 64 * 1024
    for place in places[1:-1]:
        own_memory.drop(place, MIB)
    assert resident(places[5]) < 8 * 1024
    assert not any(whole[-10:])


@pytest.mark.parametrize("nbytes", [0, 1, MIB - 1])
def test_there_are_no_pieces_in_what_is_small(nbytes):
    assert own_memory.pieces(bytearray(nbytes), MIB) == []


def test_pieces_are_within_a_buffer_whose_begin_was_cut_off():
    whole = bytearray(4 * MIB)
    del whole[:100]
    first = np.frombuffer(whole, np.uint8).ctypes.data
    places = own_memory.pieces(whole, MIB)
    assert first <= places[0]
    assert places[-1] + MIB <= first + len(whole)


def test_it_goes_when_the_last_view_of_it_goes(dropped):
    async def run():
        body = LargeBody(bytes(MIB), Turns(asyncio.get_running_loop()), "peer")
        for _ in range(4):
            body += bytes(MIB)
        view = np.frombuffer(memoryview(body)[100:], np.uint8)
        del body
        assert not dropped
        del view
        await turns_until(lambda: len(dropped) >= 4)
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(run())
    assert 4 <= len(dropped) <= 5, "each piece once"
    assert {nbytes for _, nbytes in dropped} == {PIECE_BYTES}


def test_a_thread_may_be_the_last_that_has_it(dropped):
    async def run():
        shared = Turns(asyncio.get_running_loop())
        kept = [LargeBody(bytes(4 * MIB), shared, "peer")]
        await asyncio.to_thread(kept.clear)
        await turns_until(lambda: len(dropped) >= 3)

    asyncio.run(run())


def test_it_is_let_go_at_once_where_the_loop_has_ended(dropped):
    async def run():
        return [LargeBody(bytes(4 * MIB), Turns(asyncio.get_running_loop()), "peer")]

    kept = asyncio.run(run())
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert not dropped


def test_one_without_memory_says_nothing(monkeypatch, capsys):
    async def run():
        with pytest.raises(MemoryError):
            LargeBody(Without(), Turns(asyncio.get_running_loop()), "peer")

    class Without:
        def __index__(self):
            raise MemoryError

    asyncio.run(run())
    assert capsys.readouterr().err == ""
