from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.execution.placement import Range, groups_for, place
from gemlet.serve.profiles.ladder import ladder

GROUPS = 16
sizes = st.lists(st.integers(1, GROUPS), min_size=1, max_size=8)


def named(counts: list[int]) -> dict[str, int]:
    return {f"let{number}": count for number, count in enumerate(counts)}


def overlap(placed: dict[str, Range]) -> int:
    ranges = list(placed.values())
    return sum(a.overlap(b) for number, a in enumerate(ranges) for b in ranges[:number])


@given(sizes, sizes)
def test_every_gpu_let_has_its_size_inside_the_device_and_nothing_is_shared_if_all_fit(
    old: list[int], new: list[int]
) -> None:
    before = place(named(old), GROUPS, {})
    placed = place(named(new), GROUPS, before)
    assert {name: where.size for name, where in placed.items()} == named(new)
    assert all(where.first >= 0 and where.first + where.size <= GROUPS for where in placed.values())
    if sum(new) <= GROUPS:
        assert overlap(placed) == 0
    else:
        assert overlap(placed) >= sum(new) - GROUPS


def test_a_gpu_let_that_keeps_its_size_keeps_its_sms() -> None:
    before = place({"a": 8, "b": 4, "c": 4}, GROUPS, {})
    after = place({"c": 4, "new": 2, "a": 8}, GROUPS, before)
    assert after["a"] == before["a"]
    assert after["c"] == before["c"]


def test_gaps_that_are_too_small_are_closed() -> None:
    before = {"a": Range(0, 4), "b": Range(6, 4), "c": Range(12, 4)}
    after = place({"a": 4, "b": 4, "d": 8}, GROUPS, before)
    assert overlap(after) == 0


def test_ranges_whose_graphs_are_there_are_preferred() -> None:
    assert place({"a": 4}, GROUPS, {}, ready={Range(8, 4)}) == {"a": Range(8, 4)}


@pytest.mark.parametrize(
    ("share", "groups"),
    [(1.0, 16), (0.5, 8), (1 / 16, 1), (0.01, 1), (0.2, 3), (0.9999, 16), (0.75, 12)],
)
def test_a_share_is_whole_groups(share: float, groups: int) -> None:
    assert groups_for(share, GROUPS) == groups


@pytest.mark.parametrize("groups", [15, 16, 7])
def test_every_plan_of_whole_groups_fits(groups: int) -> None:
    for count in range(1, groups + 1):
        assert groups_for(round(count / groups, 6), groups) == count
    assert groups_for(0.8, 15) + groups_for(0.2, 15) == 15  # of tenths, as gpulet's


@given(st.lists(st.floats(1 / GROUPS, 1), min_size=1, max_size=16))
def test_shares_that_fit_are_groups_that_fit(shares: list[float]) -> None:
    total = sum(shares)
    fitting = [share / max(1.0, total) for share in shares]
    groups = [groups_for(share, GROUPS) for share in fitting]
    if min(fitting) >= 1 / GROUPS:  # a plan's shares are no smaller
        assert sum(groups) <= GROUPS


@given(st.integers(1, 300))
def test_no_replayed_batch_is_more_than_a_third_padding(largest: int) -> None:
    steps = ladder(largest)
    assert steps[0] == 1
    assert steps[-1] == largest
    for batch in range(1, largest + 1):
        size = min(step for step in steps if step >= batch)
        assert (size - batch) / size < 1 / 3 + 1e-9
    assert len(steps) <= 2 * largest.bit_length() + 1
