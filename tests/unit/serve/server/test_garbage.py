"""A look at all objects holds up everybody, so there are few of them, however many objects clients make."""

from __future__ import annotations

import gc

import pytest

from gemlet.serve.server import garbage
from gemlet.serve.server.garbage import Garbage


@pytest.fixture
def collected():
    """Of the oldest generation."""
    found, before = [], gc.get_threshold()

    def count(phase, info):
        if phase == "start" and info["generation"] == 2:
            found.append(info)

    gc.callbacks.append(count)
    yield found
    gc.callbacks.remove(count)
    gc.set_threshold(*before)
    gc.unfreeze()


def test_however_many_objects_there_are_nobody_looks_at_all_of_them(collected):
    Garbage()
    collected.clear()
    kept = [[number] for number in range(1_000_000)]
    assert not collected
    assert len(kept) == 1_000_000


def test_collections_take_a_small_part_of_the_time(collected):
    cleaner, times = Garbage(), iter([100.0, 100.5, 100.5 + 0.4 / garbage.PART, 101 + 0.5 / garbage.PART, 9e9])
    cleaner.clock = lambda: next(times)
    collected.clear()
    cleaner.look()
    assert len(collected) == 1
    cleaner.look()  # the one before took half a second
    assert len(collected) == 1
    cleaner.look()
    assert len(collected) == 2
