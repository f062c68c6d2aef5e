"""Which GPU of a node is taken first: two islands of four, as in a machine of eight GPUs without a switch."""

from __future__ import annotations

import pytest

from gemlet.kube.placement import order

ISLANDS = {f"g{number}": "left" if number < 4 else "right" for number in range(8)}


def place(demands, packing):
    """Takes each demand from the first GPU that has room, as the scheduler does."""
    taken = dict.fromkeys(ISLANDS, 0)
    chosen = []
    for demand in demands:
        gpu = next(gpu for gpu in order(ISLANDS, taken, packing) if taken[gpu] + demand <= 100)
        taken[gpu] += demand
        chosen.append(gpu)
    return chosen, taken


def whole_islands(taken):
    return {island for island in ISLANDS.values() if not any(taken[gpu] for gpu in ISLANDS if ISLANDS[gpu] == island)}


def test_singles_fill_what_is_left_before_they_break_a_whole_gpu():
    chosen, taken = place([50, 60, 50, 40], "pack")
    assert chosen == ["g0", "g1", "g0", "g1"]
    assert whole_islands(taken) == {"right"}


def test_whole_gpus_are_taken_from_the_island_that_is_broken_already():
    taken = dict.fromkeys(ISLANDS, 0) | {"g6": 100}
    assert order(ISLANDS, taken, "pack")[:5] == ["g6", "g4", "g5", "g7", "g0"]


def test_spread_takes_islands_in_turn():
    chosen, _ = place([25] * 4, "spread")
    assert [ISLANDS[gpu] for gpu in chosen] == ["left", "right", "left", "right"]
    assert len(set(chosen)) == 4


@pytest.mark.parametrize("packing", ["pack", "spread"])
def test_gpus_on_no_island_are_islands_of_their_own(packing):
    alone = {"a": None, "b": None}
    assert order(alone, {}, packing) == ["a", "b"]
    assert order(alone, {"b": 50}, packing) == (["b", "a"] if packing == "pack" else ["a", "b"])
