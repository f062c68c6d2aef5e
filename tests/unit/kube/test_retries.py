"""What has failed is tried again, later each time."""

from __future__ import annotations

from gemlet.kube.retries import FIRST_SECONDS, MOST_SECONDS, Retries


def test_what_fails_is_due_later_each_time_up_to_a_minute():
    retries, now, waits = Retries(), 100.0, []
    for _ in range(8):
        retries.failed("a", "no room", now)
        assert retries.waiting(now) == {"a"}
        wait = next(seconds for seconds in range(1, 1000) if "a" in retries.due(now + seconds))
        waits.append(wait)
        now += wait
    assert waits[0] == FIRST_SECONDS
    assert waits == [2, 4, 8, 16, 32, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]


def test_only_another_reason_is_news():
    retries = Retries()
    assert [retries.failed("a", reason, 0.0) for reason in ("x", "x", "y", "y", "x")] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_what_succeeds_is_forgotten():
    retries = Retries()
    assert not retries.succeeded("a")
    retries.failed("a", "x", 0.0)
    assert retries.succeeded("a")
    assert (retries.names(), retries.waiting(0.0), retries.due(1000.0)) == (set(), set(), set())
    assert retries.failed("a", "x", 0.0), "it is news again"


def test_all_can_be_made_due_at_once_and_wait_no_less_the_next_time():
    retries = Retries()
    for _ in range(3):
        retries.failed("a", "x", 0.0)
    retries.at_once()
    assert retries.due(0.0) == {"a"}
    retries.failed("a", "x", 0.0)
    assert (retries.due(15.0), retries.due(16.0)) == (set(), {"a"})


def test_what_is_gone_is_not_tried_again():
    retries = Retries()
    retries.failed("a", "x", 0.0)
    retries.failed("b", "x", 0.0)
    retries.keep({"b", "c"})
    assert retries.names() == {"b"}
