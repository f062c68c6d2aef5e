"""What bench/goodput.py starts, and the verdicts it draws from results."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench import goodput, replan_live
from bench.mixes import COMPARED
from gemlet.serve.plan.policies import POLICIES

ROWS = [
    {"mix": "traffic", "policy": "timeshare", "served": 1000.0},
    {"mix": "traffic", "policy": "gpulet", "served": 1500.0},
    {"mix": "traffic", "policy": "nway+type", "served": 1620.0},
    {"mix": "game", "policy": "timeshare", "served": 1000.0},
    {"mix": "game", "policy": "gpulet", "served": 0.0},
    {"mix": "game", "policy": "nway+type", "served": 3000.0},
    {"mix": "vision", "policy": "timeshare", "left_out": "the budget is used up"},
]


def given(**more):
    more = {"simulate": False, "executor": "green", "profiles": "h200", "mixes": "traffic", "hop": 0.4} | more
    more = {"policies": "timeshare,selftuning", "changed": "selftuning,nway+type"} | more
    return argparse.Namespace(goodput=100.0, changing=120.0, times=0.8, **more)


def test_only_mixes_with_all_policies_are_compared():
    assert goodput.gains(ROWS) == [("traffic", 1.62, 1.08)]


def test_a_verdict_for_each_aim():
    found = {
        "goodput": {"rows": ROWS},
        "changing": {"runs": {"follow": {"violations": 0.0005, "plans_with_other_lets": 0, "lost": 0}}},
        "attainment": {"rows": [{"points": -4.0}, {"points": 6.0}]},
    }
    said = {what: aim.rpartition(" ")[2] for _, what, _, aim in goodput.verdicts(found)}
    assert said == {
        "nway+type over timeshare": "met",
        "nway+type over gpulet": "MISSED",
        "follow: violations": "met",
        "follow: plans with other gpu-lets": "MISSED",
        "follow: lost": "met",
        "cases within 5 points": "MISSED",
    }


def test_nothing_is_said_of_what_was_not_measured():
    assert goodput.verdicts({"changing": {"runs": {"follow": {"failed": "no server"}}}}) == []


@pytest.mark.parametrize("simulate", [False, True])
def test_every_part_gets_the_hop(simulate):
    parts = goodput.commands(given(simulate=simulate), Path("/x"))
    for name in ("goodput", "changing"):
        assert parts[name][parts[name].index("--hop") + 1] == "0.4"
    assert ("attainment" in parts) is not simulate


def test_every_policy_is_one_of_the_planners():
    assert set(goodput.AIMED) < set(COMPARED) < set(POLICIES)
    assert {"selftuning", "gpulet-noint"} < set(COMPARED)


def test_policies_reach_both_parts():
    parts = goodput.commands(given(), Path("/x"))
    assert parts["goodput"][parts["goodput"].index("--policies") + 1] == "timeshare,selftuning"
    assert parts["changing"][parts["changing"].index("--policies") + 1] == "selftuning,nway+type"


def test_a_run_for_each_policy_and_plan():
    o = argparse.Namespace(policies="selftuning,gpulet-noint", plans="follow,mean")
    assert replan_live.runs(o) == [
        ("selftuning, follow", "selftuning", "follow"),
        ("selftuning, mean", "selftuning", "mean"),
        ("gpulet-noint, follow", "gpulet-noint", "follow"),
        ("gpulet-noint, mean", "gpulet-noint", "mean"),
    ]
    o.policies = "nway+type"
    assert [name for name, _, _ in replan_live.runs(o)] == ["follow", "mean"]
