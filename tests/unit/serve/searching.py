"""Futures that count how often they are compared: each is, where a list of those who wait is searched for one."""

from __future__ import annotations

import asyncio


class Searched(asyncio.Future):
    count = 0

    def __eq__(self, other):
        Searched.count += 1
        return self is other

    __hash__ = asyncio.Future.__hash__


async def comparisons(wait, number):
    """How many there are when so many tasks that wait end together, the last first. ``wait`` makes what they wait for;
    tasks wait after a few turns of the loop."""
    loop = asyncio.get_running_loop()
    loop.create_future = lambda: Searched(loop=loop)
    tasks = [asyncio.create_task(wait()) for _ in range(number)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    Searched.count = 0
    for task in reversed(tasks):
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    return Searched.count
