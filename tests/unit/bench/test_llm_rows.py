"""Which windows a table of programs with frameworks takes, and how its budget ends it."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.llm import rows as plan
from bench.llm.rows import PROGRAMS, QUICK, ROWS, WAYS, Budget, Member
from bench.llm.verdicts import JUDGES


def test_every_row_can_be_run_and_judged() -> None:
    for row in ROWS.values():
        assert row.judge in JUDGES
        assert {member.program for member in row.members} <= set(PROGRAMS)
        assert len({member.name for member in row.members}) == len(row.members)
        assert sum(member.min for member in row.members) <= 1
        assert row.settle < row.seconds
        assert all((member.busy is not None) == member.program.startswith("serve") for member in row.members)


def test_every_way_comes_once_in_each_repeat_and_not_always_in_the_same_place() -> None:
    ways = list(WAYS)
    order = list(plan.turns(ways, 5))
    assert Counter(order) == Counter((repeat, way) for repeat in range(5) for way in ways)
    assert {way for repeat, way in order[:: len(ways)]} == set(ways)


def test_rows_are_chosen_by_name_and_changed_by_options() -> None:
    chosen = plan.choose(["minima", "generators-2"], ["gemlet", "slicing"], seconds=3.0, repeats=2)
    assert [row.name for row in chosen.rows] == ["minima", "generators-2"]
    assert chosen.ways == ("slicing", "gemlet")
    assert {(row.seconds, row.repeats) for row in chosen.rows} == {(3.0, 2)}
    assert [row.name for row in plan.choose([], []).rows] == list(ROWS)


def test_a_service_runs_alone_once_for_each_repeat() -> None:
    assert ROWS["service-graph"].windows_alone(3) == ROWS["service-graph"].repeats == 5
    assert ROWS["mixed-8"].windows_alone(4) == 4
    assert ROWS["generators-2"].windows_alone(3) == 3


def test_quick_is_one_repeat_of_few_rows() -> None:
    chosen = plan.choose([], [], quick=True)
    assert [row.name for row in chosen.rows] == list(QUICK)
    assert {row.repeats for row in chosen.rows} == {1}
    assert chosen.alone == 1


@pytest.mark.parametrize(("rows", "ways", "words"), [(["none"], [], "no row none"), ([], ["none"], "no way none")])
def test_a_name_that_there_is_not_is_refused(rows: list[str], ways: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan.choose(rows, ways)


def test_a_service_is_asked_as_often_as_makes_it_busy() -> None:
    row = ROWS["service-20"]
    served, training = row.members
    assert plan.parameters(served, row, 0, 0.5) == {"seed": 1, "rate": 0.4}
    assert plan.parameters(training, row, 2, None) == {"seed": 3}
    assert plan.parameters(Member("serve", busy=1.0), row, 0, None)["rate"] == 0.0
    assert plan.parameters(ROWS["changing"].members[0], ROWS["changing"], 0, None)["period"] == 5.0


def test_programs_that_a_later_row_needs_are_kept() -> None:
    needed = plan.needed([ROWS["service-100"]], ["slicing", "mps-gemlet"])
    assert ("native", "train-1") in needed
    assert plan.member_of(("mps-gemlet", "train-1-best-effort")) in needed
    assert ("gemlet", "train-1") not in needed
    assert plan.needed([], ["slicing"]) == set()


def test_programs_that_are_there_take_no_time_to_start() -> None:
    assert plan.starting(0) == 0.0
    assert plan.starting(32) > plan.starting(1) > 0.0


def test_a_budget_allows_what_ends_before_its_reserve() -> None:
    budget = Budget(100.0, begin=1000.0, reserve=10.0)
    assert budget.allows(80.0, 1010.0, "first")
    assert not budget.allows(80.0, 1011.0, "second")
    assert budget.refused == ["second"]
    assert Budget(float("inf"), 0.0).allows(1e9, 1e9, "anything")
