"""How often the driver is asked what it holds for programs."""

from __future__ import annotations

import asyncio
import contextlib

from gemlet.daemon import observer
from gemlet.daemon.observer import Observer


def test_a_program_that_makes_contexts_without_end_lets_the_driver_rest(monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def run():
        observed = Observer.__new__(Observer)
        observed._account_now = asyncio.Event()

        async def ask_what_is_held():
            observed.account_soon()  # by another context of it
            return True

        async def note(seconds):
            pauses.append(seconds)
            await sleep(0)

        observed.ask_what_is_held = ask_what_is_held
        monkeypatch.setattr(observer.asyncio, "sleep", note)
        observed.account_soon()
        task = asyncio.ensure_future(observed.account())
        while len(pauses) < 10:
            await sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert min(pauses) >= observer.ACCOUNT_SECONDS
