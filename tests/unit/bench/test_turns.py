"""Traces read as turns, and what was unusual."""

from __future__ import annotations

from bench.turns import Step, Usual, held, nobody, turns, unusual

MS = 1_000_000


def alternating(count: int = 20, *, length: int = 9, drain: int = 1) -> list[Step]:
    """Two clients, turns of ``length`` ms, one after another; each asks again 1 ms after its stop."""
    steps: list[Step] = []
    for i in range(count):
        client, at = 1 + i % 2, i * 10 * MS
        group = f"g{client - 1}"
        steps += [
            (at, group, client, "grant", at + length * MS),
            (at + length * MS, group, client, "stopped", 400_000),
            (at + (length + drain) * MS, group, client, "drained", at + (length + drain) * MS),
            (at + 10 * MS - 1, group, client, "request", i),
        ]
    return steps


def test_turns_have_their_phases() -> None:
    first, *_, last = found = turns(alternating())
    assert len(found) == 20
    assert (first.group, first.client, first.length, first.drain, first.overrun) == ("g0", 1, 9 * MS, 1 * MS, 0)
    assert first.pause == MS - 1
    assert last.wants_again is not None
    assert found[2].wanted == 10 * MS - 1


def test_a_new_deadline_counts_and_one_after_the_stop_does_not() -> None:
    steps: list[Step] = [
        (0, "a", 1, "took", 3),
        (1, "a", 1, "update", 50),
        (40, "a", 1, "revoke", 40),
        (45, "a", 1, "stopped", 0),
        (46, "a", 1, "update", 90),
    ]
    (turn,) = turns(steps)
    assert (turn.deadline, turn.revoked, turn.overrun) == (50, 40, -5)
    assert turns([(0, "a", 1, "stopped", 0)]) == []


def test_holders_of_the_token_and_gaps_between_them() -> None:
    found = turns(alternating())
    assert held(found, "g0", 0, 40 * MS) == 18 * MS
    assert held(found, "g0", 5 * MS, 12 * MS) == 4 * MS
    assert list(nobody(found, 0, 20 * MS)) == [(9 * MS, MS), (19 * MS, MS)]
    assert list(nobody([], 0, 5)) == [(0, 5)]


def test_a_turn_without_a_stop_ends_with_the_next_one() -> None:
    found = turns([(0, "a", 1, "took", 1), (5 * MS, "a", 1, "took", 2), (7 * MS, "a", 1, "stopped", 0)])
    assert held(found, "a", 0, 10 * MS) == 7 * MS
    assert list(nobody(found, 0, 10 * MS)) == [(7 * MS, 3 * MS)]


def test_an_undisturbed_run_has_nothing_unusual() -> None:
    found = turns(alternating())
    assert not [u for u in unusual(found, 0, 200 * MS) if "nobody" not in u.text]


def test_a_late_drain_and_an_overrun_are_unusual() -> None:
    steps = alternating()
    late = steps.index((19 * MS, "g1", 2, "stopped", 400_000))
    steps[late] = (26 * MS, "g1", 2, "stopped", 400_000)
    steps[late + 1] = (44 * MS, "g1", 2, "drained", 44 * MS)
    found = turns(steps)
    text = [u.text for u in unusual(found, 0, 100 * MS, Usual.of(found))]
    assert any("g1 drained 18.00 ms after its stop (median 1.00)" in w for w in text)
    assert any("g1 stopped 7.00 ms after its deadline (median 0.00)" in w for w in text)
    assert not [u for u in unusual(found, 100 * MS, 200 * MS, Usual.of(found)) if "nobody" not in u.text]
