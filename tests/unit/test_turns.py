"""The time that clients have together in a turn of the event loop, and who has it when."""

from __future__ import annotations

import asyncio
import time

import uvloop

from gemlet import turns


def test_peers_have_their_turns_one_after_another(monkeypatch):
    """However much one of them has that waits."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        begun = []
        shared = turns.Turns(asyncio.get_running_loop())
        for number in range(100):
            shared.add("one", lambda number=number: begun.append(number))
        shared.add("other", lambda: begun.append("other"))
        for count in range(1, 5):
            await asyncio.sleep(0)
            assert len(begun) == count
        return list(begun)  # the loop has more turns as it ends

    assert asyncio.run(run()) == [0, "other", 1, 2]


def test_time_is_over_until_the_next_turn(monkeypatch):
    async def run():
        shared = turns.Turns(asyncio.get_running_loop())
        monkeypatch.setattr(turns, "TURN_S", 3600.0)
        assert not shared.over()
        shared.end()
        assert shared.over()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not shared.over()

    asyncio.run(run())


def test_what_asks_again_waits_for_another_turn(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 3600.0)

    async def run():
        begun = []
        shared = turns.Turns(asyncio.get_running_loop())

        def again():
            begun.append(None)
            shared.add("one", again)

        shared.add("one", again)
        for count in range(1, 5):
            await asyncio.sleep(0)
            assert len(begun) == count

    asyncio.run(run())


def test_as_much_is_read_as_takes_a_turn(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.002)
    assert turns.Turns.fitting(1000, 0.004) == 500
    assert turns.Turns.fitting(1000, 0.0) > 1 << 20


def test_time_is_over_also_where_the_clock_of_the_loop_is_coarse():
    """As uvloop's, which counts milliseconds."""

    async def run():
        shared, loop = turns.Turns(asyncio.get_running_loop()), asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() == begun:
            pass
        began = time.perf_counter()
        shared.over()
        while time.perf_counter() - began < 1.1 * turns.TURN_S:
            pass
        return shared.over()

    assert uvloop.run(run())


def test_what_is_small_has_room_again_in_the_next_turn_of_the_loop(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1.0)
    monkeypatch.setattr(turns, "SMALL_S", 5.0)

    async def run():
        shared = turns.Turns(asyncio.get_running_loop())
        for _ in range(2):
            for seconds in (0.9, 4.0, 0.1):
                assert shared.has_room()
                shared.took(seconds)
            assert not shared.has_room()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_what_is_small_and_waits_comes_before_what_is_small_and_new(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1.0)
    monkeypatch.setattr(turns, "SMALL_S", 5.0)

    async def run():
        shared, begun, now = turns.Turns(asyncio.get_running_loop()), [], 0.0
        shared.clock = lambda: now

        def work(name):
            nonlocal now
            now += 3.0
            begun.append(name)

        for number in range(3):
            shared.add("one", lambda number=number: work(number), small=True)
        shared.add("other", lambda: work("other"), small=True)
        for expected in ([0, "other"], [0, "other", 1, 2]):
            await asyncio.sleep(0)
            assert begun == expected
            assert not shared.has_room()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_turn_of_one_of_many_costs_no_look_at_the_others(monkeypatch):
    """Else thousands who wait stop the loop, of whose time a turn takes so little."""
    monkeypatch.setattr(turns, "TURN_S", 3600.0)
    monkeypatch.setattr(turns, "SMALL_S", 3600.0)

    async def run(peers, small):
        """Seconds of this thread's for each of them, all in a turn of the loop."""
        shared, began, ended = turns.Turns(asyncio.get_running_loop()), [], asyncio.Event()
        shared.add("first", lambda: began.append(time.thread_time()), small=small)
        for number in range(peers):
            shared.add(str(number), int, small=small)
        shared.add("last", lambda: (began.append(time.thread_time()), ended.set()), small=small)
        await ended.wait()
        return (began[1] - began[0]) / peers

    for small in (True, False):
        few = min(asyncio.run(run(2_000, small)) for _ in range(5))
        many = min(asyncio.run(run(60_000, small)) for _ in range(2))
        assert many < 8 * few, small  # 30 times as much, if each looks at all


def test_others_have_their_turns_where_one_fails(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def run():
        loop, begun, told = asyncio.get_running_loop(), [], []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        shared = turns.Turns(loop)

        def fail():
            raise MemoryError

        for small in (True, False):
            shared.add("one", fail, small=small)
            shared.add("other", lambda small=small: begun.append(small), small=small)
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == [True, False]
        assert [type(each) for each in told] == [MemoryError] * 2

    asyncio.run(run())
