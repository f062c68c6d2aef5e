"""How long requests took: quantiles of counts, the last minute, and where status and history show them."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.daemon.history_moment import GROUP_COLUMNS, Sums
from gemlet.daemon.history_sampling import Moments
from gemlet.daemon.latency import BOUNDS_NS, SHOWN, Recent, difference, quantile
from gemlet.daemon.native import DeviceUsage, GroupUsage, Snapshot
from gemlet.daemon.recent_usage import RecentUsage
from tests.unit.monitor.status_example import example, group

SECOND = 1_000_000_000
UUID = bytes(16)


def number(ns):
    """Of the bound at which this is counted."""
    return next((n for n, bound in enumerate(BOUNDS_NS) if ns <= bound), len(BOUNDS_NS))


def test_the_bounds_are_those_of_the_native_server():
    native = pytest.importorskip("gemlet._native", reason="the native module is not built")
    assert native.LATENCY_BOUNDS_NS == BOUNDS_NS
    assert [BOUNDS_NS[n] / 1e9 for n in SHOWN[:4]] == [0.0001, 0.0002, 0.0005, 0.001]
    assert BOUNDS_NS[SHOWN[-1]] == 10 * SECOND


@given(st.lists(st.integers(10_001, 80 * SECOND), min_size=1, max_size=200), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_is_right_to_its_bucket(durations, part):
    counts: dict[int, int] = {}
    for duration in durations:
        counts[number(duration)] = counts.get(number(duration), 0) + 1
    found = quantile(counts, part)
    exact = sorted(durations)[max(0, math.ceil(len(durations) * part - 1e-9) - 1)]
    assert found is not None
    assert abs(found * 1e9 - exact) <= 0.31 * exact


def test_quantiles_of_nothing_and_of_what_is_beyond_all_bounds():
    assert quantile({}, 0.5) is None
    assert quantile({len(BOUNDS_NS): 3}, 0.5) == BOUNDS_NS[-1] / 1e9
    assert quantile({0: 4}, 0.5) == BOUNDS_NS[0] / 2e9


def test_a_group_of_the_same_name_begins_anew():
    assert difference({3: 5, 4: 1}, {3: 2}) == {3: 3, 4: 1}
    assert difference({3: 1}, {3: 2, 4: 7}) == {3: 1}
    assert difference({3: 2}, {3: 2}) == {}


def test_the_last_minute_and_all_of_it():
    recent = Recent()
    fast, slow = number(1_000_000), number(50_000_000)
    recent.add(0, [])
    for second in range(1, 100):
        counts = [(fast, min(second, 20) * 10), (slow, max(0, second - 90))]
        recent.add(second * SECOND, [c for c in counts if c[1]])
    found = recent.latency(counts, sum_ns=7 * SECOND)
    assert found is not None
    assert (found.requests, found.sum_s) == (209, 7.0)
    assert found.p50_s == pytest.approx(0.05, rel=0.3)  # the fast ones are over a minute old
    below = dict(found.buckets)
    assert (below[0.001], below[0.02], below[0.05], below[10.0]) == (200, 200, 209, 209)
    assert Recent().latency([], 0) is None


def snapshot(second, **counts):
    groups = tuple(
        GroupUsage(name=name, latencies=tuple(each.items()), latency_sum_ns=SECOND) for name, each in counts.items()
    )
    return Snapshot(now_ns=second * SECOND, devices=(DeviceUsage(uuid=UUID, groups=groups),))


def test_the_status_has_it_of_groups_with_requests_only():
    recent = RecentUsage()
    recent.add(snapshot(1, a={}, b={}))
    recent.add(snapshot(2, a={5: 3}, b={}))
    later = snapshot(3, a={5: 4}, b={})
    recent.add(later)
    a, b = later.devices[0].groups
    found = recent.latency((UUID, "a"), a)
    assert found is not None
    assert found.requests == 4
    assert found.p99_s is not None
    assert recent.latency((UUID, "b"), b) is None
    recent.add(snapshot(4, b={}))  # it has gone
    assert not recent._latencies


def test_a_moment_has_what_was_counted_in_it():
    moments = Moments()
    device = example().devices[0]
    status = {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "groups": (group("a", 0.5, clients=1),)}
    shown = msgspec.structs.replace(example(), devices=(msgspec.structs.replace(device, **status),))
    names = [column.name for column in GROUP_COLUMNS]
    fast, slow = number(2_000_000), number(80_000_000)

    def take(second, counts):
        moments.look(snapshot(second, a=counts))
        found, _ = moments.take(shown, float(second))
        return dict(zip(names, found[status["uuid"], "a"], strict=True)) if found else None

    assert take(1, {fast: 7}) is None
    first = take(3, {fast: 7})
    assert first is not None
    assert (first["requests"], first["p50"], first["p99"]) == (0.0, None, None)
    second = take(5, {fast: 13, slow: 2})
    assert second is not None
    assert second["requests"] == 4.0
    assert second["p50"] == pytest.approx(0.002, rel=0.3)
    assert second["p99"] == pytest.approx(0.08, rel=0.3)
    both = Sums(GROUP_COLUMNS)
    both.add(tuple(first.values()))
    both.add(tuple(second.values()))
    merged = dict(zip(names, both.mean(0, 2), strict=True))
    assert (merged["requests"], merged["p99"]) == (2.0, second["p99"])
