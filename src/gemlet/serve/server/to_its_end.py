"""Waiting for work that cannot be stopped, so that a turn at it lasts as long as the work does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

Result = TypeVar("Result")


async def to_its_end(work: Awaitable[Result]) -> Result:
    """What a thread or process gives. A cancellation is raised when that is done, and its result or error dropped.

    Further ones change nothing: a connection that is refused something ends, and cancels what is cancelled already.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        future.cancelled() or future.exception()
        raise
