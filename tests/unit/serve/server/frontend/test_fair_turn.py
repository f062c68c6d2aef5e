"""One has its turn at a time, and of those who wait one of each peer after another."""

from __future__ import annotations

import asyncio

from gemlet.serve.server.frontend.fair_turn import FairTurn
from gemlet.serve.server.frontend.regions import Regions
from tests.unit.serve.searching import comparisons


def order_of(*asking, cancelled=(), cancel_with_turn=False):
    """In which order peers have their turns, who ask in this order while somebody else has it."""

    async def run():
        turn, found = FairTurn(), []

        async def ask(peer):
            async with turn.of(peer):
                found.append(peer)
                await asyncio.sleep(0)

        async with turn.of("first"):
            tasks = [asyncio.create_task(ask(peer)) for peer in asking]
            await asyncio.sleep(0)
            for number in () if cancel_with_turn else cancelled:
                tasks[number].cancel()
        for number in cancelled if cancel_with_turn else ():
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turn.of("last"):
            assert not turn._waiting
        return found

    return asyncio.run(run())


def test_peers_have_their_turns_one_after_another_whatever_they_ask_for():
    assert order_of("a", "a", "a", "b", "b", "c") == ["a", "b", "c", "a", "b", "a"]


def test_who_has_gone_has_no_turn_and_keeps_nobody_waiting():
    assert order_of("a", "a", "b", cancelled=(0, 2)) == ["a"]
    assert order_of("a", "b", cancelled=(0,), cancel_with_turn=True) == ["b"]
    assert order_of("a", cancelled=(0,), cancel_with_turn=True) == []


def test_who_goes_leaves_nothing_behind_while_somebody_has_the_turn():
    async def run():
        turn = FairTurn()
        async with turn.of("first"):
            tasks = [asyncio.create_task(waiting(turn.of(peer))) for peer in ("a", "a", "b")]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks[::2])
            assert {peer: len(those) for peer, those in turn._waiting.items()} == {"a": 1}
        await tasks[1]

    asyncio.run(run())


def test_thousands_who_wait_end_together_in_little_time():
    async def run():
        turn = FairTurn()
        async with turn.of("first"):
            return await comparisons(lambda: waiting(turn.of("a")), 200)

    assert asyncio.run(run()) < 10 * 200


def test_nor_do_those_who_wait_for_shared_memory_look_for_each_other():
    async def run():
        regions = Regions()
        async with regions.turn_of(1):
            return await comparisons(lambda: waiting(regions.turn_of(1)), 200)

    assert asyncio.run(run()) < 10 * 200


async def waiting(turn):
    async with turn:
        pass
