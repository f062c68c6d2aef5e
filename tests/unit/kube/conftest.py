"""A node in pieces: GPUs, a daemon that only remembers, a book in a temporary directory."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.kube import fakes


@pytest.fixture
def node(tmp_path):
    return fakes.Node(tmp_path)


@pytest.fixture
def run():
    """Runs a coroutine to its end, in a loop of its own."""

    def complete(coroutine):
        async def bounded():
            async with asyncio.timeout(20):
                return await coroutine

        return asyncio.run(bounded())

    return complete
