"""Profiles from batches: when there are enough, and what a plan may rest on then."""

from __future__ import annotations

import pytest

from gemlet.serve.profiles.learned import AFTER_S, BATCHES, Learned


def taught(learned, key="m/1@a", *, share=1.0, rows=(1, 4, 8), each_ms=1.0, begin=0.0, seconds=AFTER_S, count=20):
    """``count`` batches of each size within that time; a batch takes 2 ms and ``each_ms`` for each row."""
    steps = [(begin + seconds * number / (count * len(rows)), n) for number, n in enumerate(rows * count)]
    for at, n in steps:
        learned.observe(key, share, n, 2.0 + each_ms * n, at)
    return begin + seconds


def test_a_minute_of_traffic_is_a_profile():
    learned = Learned()
    end = taught(learned)
    assert learned.profile("m/1@a", end - 1) is None
    surface = learned.profile("m/1@a", end).surface
    assert [surface.latency(1.0, n) for n in (1, 4, 8)] == [3.0, 6.0, 10.0]
    assert surface.max_batch == 8
    assert surface.latency(0.5, 8) == pytest.approx(20.0)  # nothing is known of smaller shares: in proportion


def test_few_batches_are_none():
    learned = Learned()
    end = taught(learned, count=BATCHES // 6)
    assert learned.profile("m/1@a", end) is None


def test_sizes_seen_rarely_do_not_count():
    learned = Learned()
    end = taught(learned)
    for _ in range(3):
        learned.observe("m/1@a", 1.0, 32, 1.0, end)
    assert learned.profile("m/1@a", end).surface.max_batch == 8


def test_what_is_on_the_way_is_the_planners_to_add():
    learned = Learned(hop_ms=0.4)
    assert learned.profile("m/1@a", taught(learned)).surface.latency(1.0, 1) == pytest.approx(2.6)


def test_other_files_are_another_model():
    learned = Learned()
    end = taught(learned)
    assert learned.profile("m/1@b", end) is None
    taught(learned, "m/1@b", each_ms=3.0, begin=end)
    learned.keep_only({"m/1@b"})
    assert learned.profile("m/1@a", 10 * end) is None
    assert learned.profile("m/1@b", 2 * end).surface.latency(1.0, 1) == 5.0


def test_the_rate_is_of_rows():
    learned = Learned()
    end = taught(learned)
    assert learned.rate("m/1@a", end) == pytest.approx(20 * (1 + 4 + 8) / AFTER_S, rel=0.02)  # but for the first batch
    assert learned.rate("other", end) == 0.0
