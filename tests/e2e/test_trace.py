"""`gemlet trace` of two programs that both keep a device busy."""

from __future__ import annotations

import json
import sys

import pytest

from tests.e2e.programs import SPIN
from tests.unit.monitor.trace_format import check
from tests.waiting import eventually


@pytest.fixture
def two(gemlet):
    gemlet.start("daemon", "--simulate")
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    for group in ("a", "b"):
        gemlet.start(
            "run", "--simulate", "-q", "--group", group, "--workload", "alone", "--", sys.executable, "-c", SPIN, "600"
        )
    return gemlet


def last(gemlet, *arguments):
    result = gemlet("trace", "a", *arguments, "--simulate", "-o", "-")
    return json.loads(result.stdout) if result.returncode == 0 else {"traceEvents": []}


def waits(document):
    return [e for e in document["traceEvents"] if e["name"] == "waits" and "meanwhile ran" in e["args"]]


def test_the_last_seconds_say_who_waited_and_who_ran_meanwhile(two, tmp_path):
    eventually(lambda: {e["args"]["meanwhile ran"].split()[0] for e in waits(last(two, "60s"))} == {"a", "b"})
    document = last(two, "60s")
    check(document)
    assert document["otherData"] | {"steps": 0, "end_s": 0} == {
        "program": "gemlet trace",
        "group": "a",
        "simulated": True,
        "steps": 0,
        "lost": False,
        "end_s": 0,
    }
    threads = {e["args"]["name"].split(":")[0] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert threads == {"a", "b"}
    coming = two("trace", "a", "1s", "--next", "--simulate", "-o", str(tmp_path / "t.json"))
    assert coming.returncode == 0, coming.stderr
    assert coming.stdout.splitlines()[0].split()[0] == "PROGRAM"
    document = json.loads((tmp_path / "t.json").read_text())
    check(document)
    assert waits(document)


def test_what_cannot_be_traced(two, tmp_path):
    eventually(lambda: waits(last(two, "60s")))
    unknown = two("trace", "nobody", "--simulate", "-o", "-")
    assert (unknown.returncode, unknown.stdout) == (125, "")
    assert "no program of group nobody has used a device lately" in unknown.stderr
    nowhere = two("trace", "a", "--simulate", "-o", str(tmp_path / "none" / "t.json"))
    assert nowhere.returncode == 125
    assert "cannot be written: No such file or directory" in nowhere.stderr
    assert two("trace", "a", "2h", "--simulate").returncode == 2
