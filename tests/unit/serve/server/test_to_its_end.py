"""Work that cannot be stopped has its turn until it is done, however often who asked for it is told to go."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.serve.server.to_its_end import to_its_end


async def begun(work):
    task = asyncio.ensure_future(to_its_end(work))
    await asyncio.sleep(0)
    return task


async def cancel(task, times):
    for _ in range(times):
        task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [None, OSError("lost")])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_cancellation_comes_when_the_work_is_done(times, error):
    async def run():
        work = asyncio.get_running_loop().create_future()
        task = await begun(work)
        await cancel(task, times)
        assert not task.done()
        if error is None:
            work.set_result(1)
        else:
            work.set_exception(error)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_without_one_it_gives_what_the_work_gives():
    async def run():
        done, failed = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
        done.set_result(1)
        failed.set_exception(OSError("lost"))
        assert await to_its_end(done) == 1
        with pytest.raises(OSError, match="lost"):
            await to_its_end(failed)

    asyncio.run(run())
