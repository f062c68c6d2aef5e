"""The plan follows the load of a server in modelled time, with `gemlet load` as its users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tests.e2e.serve_process import serving, write_model

MODEL = """
platform: modelled
max_batch: 32
slo: {slo}
inputs: [{{name: X, datatype: FP32, shape: [4]}}]
outputs: [{{name: Y, datatype: FP32, shape: [4]}}]
"""
DEADLINE_S = 40.0


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    for name in ("resnet50", "vgg16"):
        write_model(folder, name, MODEL.format(slo="10s"))
    return folder


def load(server, model, rate, seconds):
    """What `gemlet load` says of the model."""
    done = subprocess.run(
        [sys.executable, "-m", "gemlet.cli.main", "load", f"http://{server.http}", "-m", model, "--rate", str(rate),
         "--slo", "10s", "--duration", f"{seconds}s", "-o", "json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout)["runs"][0]["models"][model]


def executors(server):
    return [
        child.pid
        for child in psutil.Process(server.process.pid).children()
        if "gemlet.serve.execution.worker" in child.cmdline()
    ]


def until(holds, words):
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, words()
        time.sleep(0.05)


def test_an_executor_that_is_killed_costs_no_reply_and_the_plan_goes_around_it(repository, tmp_path):
    with serving(repository, tmp_path / "log", "--executor", "modelled", "--devices", "0,1") as server:
        assert server.document["replanning"]
        first = min(executors(server))  # of device 0, which the plan uses
        found = {}
        thread = threading.Thread(target=lambda: found.update(load(server, "resnet50", 100, 4)))
        thread.start()
        time.sleep(1.5)
        os.kill(first, 9)
        thread.join()
        until(lambda: "planned anew (device 0 is lost)" in server.log, lambda: server.log)
        until(lambda: len(executors(server)) == 2, lambda: server.log)
    assert found["answered"] == found["requests"] > 300, server.log
    assert found["refused"] == {}


def test_executors_that_no_plan_needs_rest_until_the_load_is_there(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "densenet161", MODEL.format(slo="1s"))
    demands = tmp_path / "demands.toml"
    demands.write_text('[options]\nquantile = 0.5\n[[model]]\nname = "densenet161"\nslo = "1s"\nrate = 5\n')
    arguments = ("--executor", "modelled", "--devices", "0,1,2", "--scale", "1:3", "--demand", str(demands))
    with serving(folder, tmp_path / "log", *arguments) as server:
        load(server, "densenet161", 60, 7)  # another rate, so another plan, so another look at the devices
        until(lambda: len(executors(server)) == 1, lambda: server.log)
        assert server.log.count(" rests: no plan uses it") == 2
        assert load(server, "densenet161", 20, 1)["refused"] == {}
