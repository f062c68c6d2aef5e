"""A node in pieces: GPUs, a daemon that only remembers, a book in a temporary directory."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.kube import fakes


@pytest.fixture
def tmp_path(tmp_path_factory):
    """With a short name: the path of a Unix socket has 107 characters at most, and a worker's folder takes its part."""
    return tmp_path_factory.mktemp("n")


@pytest.fixture
def node(tmp_path):
    return fakes.Node(tmp_path)


@pytest.fixture
def run():
    """Runs a coroutine to its end, in a loop of its own."""

    def complete(coroutine):
        async def bounded():
            async with asyncio.timeout(120):
                return await coroutine

        return asyncio.run(bounded())

    return complete


@pytest.fixture
def authority():
    return pytest.importorskip("trustme").CA()
