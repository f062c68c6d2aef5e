"""A node in pieces: GPUs, a daemon that only remembers, a book in a temporary directory."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

# --import-mode=importlib gives test folders no package, so the fakes are loaded by path, once.
_spec = importlib.util.spec_from_file_location("kube_fakes", Path(__file__).with_name("fakes.py"))
assert _spec
assert _spec.loader
fakes = importlib.util.module_from_spec(_spec)
sys.modules["kube_fakes"] = fakes
_spec.loader.exec_module(fakes)


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
