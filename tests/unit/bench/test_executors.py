"""bench/executors.py and the rows of bench/serving.py that run in executors' processes, in modelled time."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench import mixes, serving
from bench.executors import Executors
from gemlet.errors import GemletError
from gemlet.serve.execution.backend import GpuLet
from gemlet.serve.models import built_in
from gemlet.serve.profiles import profile_files
from gemlet.serve.profiles.profile import render

KNOWN = profile_files.load_profiles(Path("h200"))
MODEL = "lenet1"
SLOW = "vgg16"  # thousands of requests a second where the other has hundreds of thousands
LONG_S = 600.0


def given(rows):
    return {t.name: np.zeros((rows, *t.shape), np.uint8) for t in built_in.spec(MODEL).inputs}


def gpu_lets(*names):
    return [GpuLet(name=name, sm=0.25, models={MODEL: 8}) for name in names]


def test_batches_have_their_way_to_another_process():
    with Executors("modelled", render(KNOWN), {"GEMLET_BENCH_TEST": "1"}) as executors:
        executors.load(built_in.spec(MODEL))
        executors.partition(gpu_lets("a", "b"))
        assert executors.run("b", MODEL, given(4), 4) == {}
        (process,) = [p for p in psutil.Process().children() if "--backend" in p.cmdline()]
        assert process.environ()["GEMLET_BENCH_TEST"] == "1"
        assert "GEMLET_BENCH_TEST" not in os.environ
        executors.partition(gpu_lets("b"))
        with pytest.raises(GemletError):
            executors.run("a", MODEL, given(1), 1)
    assert not process.is_running()


def test_an_executor_that_died_is_told():
    with Executors("modelled", render(KNOWN)) as executors:
        executors.load(built_in.spec(MODEL))
        executors.partition(gpu_lets("a"))
        (process,) = [p for p in psutil.Process().children() if "--backend" in p.cmdline()]
        process.kill()  # and no wait: the executors' event loop waits for it, and would never end if we were first
        with pytest.raises(GemletError):
            executors.run("a", MODEL, given(1), 1)
        with pytest.raises(GemletError, match="died"):
            executors.partition(gpu_lets("a"))


def test_rows_of_processes_stand_beside_the_others(monkeypatch, tmp_path):
    monkeypatch.setitem(mixes.MIXES, "one", {SLOW: 1.0})
    monkeypatch.setattr(serving, "WARM_UP_S", 0.0)
    result = tmp_path / "result.json"
    asked = []

    class OfProcesses:
        groups = 15

        def of(self, row):
            asked.append(row)
            if row == "mps":
                raise RuntimeError("there is no MPS here")
            return executors

    o = argparse.Namespace(mixes="one", policies="timeshare,process,mps", hop=0.4, quick=True, trials=3, seconds=0.2)
    o.output = result
    with Executors("modelled", render(KNOWN)) as executors:
        serving.measure(OfProcesses(), KNOWN, time.monotonic() + LONG_S, o)
    assert asked == ["timeshare", "process", "mps"]
    rows = {row["policy"]: row for row in json.loads(result.read_text())["rows"]}
    assert rows["process"]["planned"] > 0
    assert rows["process"]["trials"]
    assert "no MPS" in rows["mps"]["error"]
    for row in ("process", "mps"):
        assert rows[row]["lets"]


def test_the_executor_of_a_process_for_each_gpu_let_gets_a_plan_of_its_own():
    options = {name: mixes.exact({MODEL: 1.0}, 1, **more) for name, (_, more) in serving.OURS.items()}
    assert {name for name, each in options.items() if each.executor == "mps"} == {"mps"}
