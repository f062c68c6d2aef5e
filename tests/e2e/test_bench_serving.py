"""The benchmarks of `gemlet serve` run to their end in modelled time, and their documents say what happened."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def bench(module, *arguments):
    return [sys.executable, "-m", f"bench.{module}", "--executor", "modelled", *arguments]


def test_everything_that_is_done_to_a_server_has_its_verdict(tmp_path):
    out = tmp_path / "out.json"
    arguments = ["--models", "densenet161,lenet1", "--rates", "20", "--seconds", "1", "-o", str(out)]
    done = subprocess.run(
        bench("serve_http", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    document = json.loads(out.read_text())
    verdicts = {check["what"]: check for check in document["checks"]}
    # Whether requests are in time depends on who else uses this machine; whether they are answered does not.
    answered = [what for what in verdicts if what.endswith("all answered")]
    assert len(answered) == 6  # two rates, two of the overload, killed, reload
    must = [*answered, "tritonclient http", "tritonclient grpc", "reload: unload", "reload: load", "ending: SIGTERM"]
    assert [verdicts[what] for what in must if not verdicts[what]["held"]] == []
    assert document["killed"]["restarted_after_s"] > 0
    assert document["rates"][0]["cpu_s"]["generator"] > 0
    assert "no GPU was used" in done.stdout


def test_changing_rates_can_be_stopped_with_what_there_is(tmp_path):
    out = tmp_path / "out.json"
    command = bench("replan", "--live", "--seconds", "300", "--times", "0.02", "--plans", "follow,mean", "-o", str(out))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if re.match(r" +\d+ s +[1-9]\d* requests/s", line):  # there is something to stop with
                break
        process.send_signal(signal.SIGTERM)
        words, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    found = json.loads(out.read_text())["runs"]
    assert found["mean"] == {"left_out": "stopped"}
    one = found["follow"]
    assert one["stopped"]
    assert 0 < one["seconds"] < 60
    assert one["lost"] == 0
    assert one["exit_code"] == 0
    for model in one["models"].values():
        assert 0 <= model["violations"] <= 1
        assert sum(each["requests"] for each in model["intervals"]) >= model["requests"]
    assert "stopped: here is what there is" in words
