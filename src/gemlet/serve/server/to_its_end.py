"""Waiting for work that cannot be stopped, so that a turn at it lasts as long as the work does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

Result = TypeVar("Result")


async def to_its_end(work: Awaitable[Result]) -> Result:
    """What a thread or process gives. A cancellation is raised when that is done, and its result or error dropped."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        future.cancelled() or future.exception()
        raise
