"""What runs of `gemlet load` come to."""

from __future__ import annotations

import pytest

from bench.outcomes import Spell, back_after, count, is_lost, merged, reaction, silences, spells


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("504 the deadline is # ms after arrival", False),
        ("503 # requests of m wait", False),
        ("404 there is no model 'm'", False),
        ("DEADLINE_EXCEEDED it waited # ms", False),
        ("UNAVAILABLE the server is ending", False),
        ("UNAVAILABLE failed to connect to all addresses", True),
        ("UNAVAILABLE Socket closed", True),
        ("no reply", True),
        ("connection closed by the server", True),
        ("connection lost: [Errno #] Connection reset by peer", True),
        ("cannot connect: Connection refused", True),
    ],
)
def test_a_refusal_is_an_answer_of_the_server_and_a_loss_is_not(reason, lost):
    assert is_lost(reason) == lost


def test_counts_of_one_model_and_of_all():
    one = {"requests": 10, "answered": 7, "in_time": 6, "refused": {"504 late": 2, "no reply": 1}}
    two = {"requests": 5, "answered": 3, "in_time": 3, "refused": {"504 late": 1}}
    run = {"models": {"a": one, "b": two}}
    total = count(run)
    assert (total.requests, total.answered, total.in_time, total.refused, total.lost) == (15, 10, 9, 3, 1)
    assert total.unaccounted == 1  # one of b is in no column
    assert total.attainment == pytest.approx(0.6)
    assert count(run, "a").unaccounted == 0


def row(at, requests, in_time, answered=None):
    return {"at": at, "requests": requests, "in_time": in_time, "answered": in_time if answered is None else answered}


SECONDS = [
    row(0, 100, 100), row(1, 100, 90), row(2, 0, 0), row(3, 100, 50), row(4, 100, 99), row(5, 0, 0), row(6, 100, 0, 80),
    row(7, 100, 0), row(8, 100, 100),
]  # fmt: skip


def test_spells_of_bad_seconds():
    assert spells(SECONDS, 1.0) == [Spell(1, 4, 200, 60), Spell(6, 8, 200, 200)]
    assert spells(SECONDS[:1], 1.0) == []
    assert [(s.begin, s.end) for s in silences(SECONDS, 1.0)] == [(7, 8)]


def test_the_reaction_to_a_step_ends_with_the_spell_it_began():
    found = spells(SECONDS, 1.0)
    assert reaction(found, 1.0) == 3.0
    assert reaction(found, 2.5) == 5.5  # the second one began within five seconds of it
    assert reaction(found, 2.5, latest_s=2.0) == 1.5
    assert reaction(found, 8.0) == 0.0


def test_back_after_a_death():
    assert back_after(SECONDS, 1.0, 5.5) == 2.5
    assert back_after(SECONDS, 1.0, 2.5) == 1.5  # two good seconds between bad ones are enough
    assert back_after(SECONDS, 1.0, 2.5, steady_s=2.5) is None
    assert back_after(SECONDS, 1.0, 8.0) == 0.0
    assert back_after(SECONDS[:-1], 1.0, 5.5) is None


def test_short_intervals_make_long_ones():
    short = [row(0.1 * n, 10, 9, 10) | {"p99_ms": None if n == 1 else float(n)} for n in range(5)]
    assert merged(short, 2) == [
        {"at": 0.0, "requests": 20, "answered": 20, "in_time": 18, "highest_p99_ms": 0.0},
        {"at": 0.2, "requests": 20, "answered": 20, "in_time": 18, "highest_p99_ms": 3.0},
        {"at": 0.4, "requests": 10, "answered": 10, "in_time": 9, "highest_p99_ms": 4.0},
    ]
