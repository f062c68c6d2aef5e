"""Why requests were late: one cause and one stage each, and what batches took beside their profile."""

from __future__ import annotations

import json

import pytest

from bench import lateness
from bench.lateness import Adopted
from gemlet.serve.profiles import modelled

NOW = 1_700_000_000.0
SLOS = {"bert": 10.0}
PLANS = [Adopted(0.0, 0.0, 0, {"bert": 100.0}), Adopted(NOW + 20, NOW + 18, 2, {"bert": 200.0})]


def line(at, outcome="answered", total=5.0, **more):
    return {"time": NOW + at, "model": "bert", "outcome": outcome, "total_ms": total} | more


def caused(at, others=(), **more):
    late = line(at, total=20.0, **more)
    return lateness.Judge([line(0.0), *others, late], PLANS).cause(late)


@pytest.mark.parametrize(
    ("at", "cause"),
    [(1.0, "start"), (10.0, "steady"), (19.0, "making"), (21.0, "changed"), (22.5, "steady")],
)
def test_the_cause_is_where_it_came(at, cause):
    assert caused(at) == cause


@pytest.mark.parametrize(
    ("number", "at", "cause"), [(115, 10.5, "short"), (105, 10.5, "steady"), (150, 25.5, "steady")]
)
def test_a_rate_above_the_plan_in_force_is_its_own_cause(number, at, cause):
    assert caused(at, [line(int(at) + i / 1000) for i in range(number)]) == cause


def test_a_plan_that_changed_no_gpu_let_is_no_cause():
    late = line(10.0, total=20.0)
    kept = [Adopted(0.0, 0.0, 0, {"bert": 100.0}), Adopted(NOW + 9.5, NOW + 9, 0, {"bert": 100.0})]
    assert lateness.Judge([line(0.0), late], kept).cause(late) == "steady"


@pytest.mark.parametrize(
    ("one", "late"),
    [(line(1), False), (line(1, total=10.1), True), (line(1, "deadline"), True), (line(1, "cancelled"), False)],
)
def test_late_is_refused_or_above_the_slo(one, late):
    assert lateness.late(one, SLOS) is late


def test_the_stage_is_the_longest_of_the_request():
    assert lateness.stage(line(1, queued_ms=3.0, computed_ms=7.0, way_ms=0.4)) == "computed"
    assert lateness.stage(line(1, "deadline")) == "refused"


def test_plans_are_read_from_the_words_of_the_server():
    words = "planned anew (other rates: a): 1 device, 3 gpu-lets changed and 2 as before, in force after 250 ms"
    made = lateness.in_force({"unix_s": NOW, "words": words}, {"bert": 1.0})
    assert (made.since, made.begun, made.moved) == (NOW, NOW - 0.25, 3)


def test_the_report_counts_each_late_request_once_and_batches_once(tmp_path):
    known = modelled.h200()
    took = known.models["bert"].surface.latency(0.5, 4)
    ran = {"gpu_let": "gpu0/let0", "sm": 0.5, "batch": 4, "way_ms": 0.3, "computed_ms": 2 * took}
    lines = [line(6 + batch, total=20.0 if batch == 11 else 1.0, **ran) for batch in range(12) for _ in range(4)]
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(each) + "\n" for each in [line(0.0, "deadline"), *lines]) + '{"time":')
    read = lateness.read(path)
    assert len(read) == 49
    found = lateness.report(read, PLANS[:1], SLOS, known)
    assert found["by_cause"] == {"bert": {"start": 1, "steady": 4}}
    assert found["by_stage"] == {"start": {"refused": 1}, "steady": {"computed": 4}}
    assert len(found["late"]) == 5
    (row,) = found["batches"]
    assert (row["batches"], row["mean_rows"], row["over_p50"], row["first_p50"]) == (12, 4, 2.0, 2.0)


def test_batches_that_begin_while_gpu_lets_are_made_ready_are_told_apart():
    known = modelled.h200()
    took = known.models["bert"].surface.latency(0.5, 4)
    ran = {"gpu_let": "gpu0/let0", "sm": 0.5, "batch": 4, "way_ms": 0.3}
    lines = [line(at, computed_ms=(3 if 18 <= at < 20 else 1) * took, **ran) for at in range(24)]
    (row,) = lateness.report(lines, PLANS, SLOS, known)["batches"]
    assert (row["over_p95"], row["making_p50"]) == (1.0, 3.0)
