"""The plan follows the load of a server in modelled time, with `gemlet load` as its users."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
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


PYTHON = "def infer(inputs): return {'Y': inputs['X']}\n"


def post(server, path, body=None):
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def ask(server, model):
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}]}
    return post(server, f"/v2/models/{model}/infer", json.dumps(body))[0]


def plans_of(server):
    return server.log.count("planned anew")


def test_models_that_come_late_are_served_at_once_and_stay_served(tmp_path):
    """A model whose profile has another name, and one without a profile: the controller must not forget either."""
    folder = tmp_path / "models"
    write_model(folder, "densenet161", MODEL.format(slo="5s"))
    demands = tmp_path / "demands.toml"
    demands.write_text('[options]\nquantile = 0.5\n[[model]]\nname = "densenet161"\nslo = "5s"\nrate = 5\n')
    with serving(folder, tmp_path / "log", "--demand", str(demands)) as server:
        assert server.document["replanning"]
        write_model(folder, "alias", MODEL.format(slo="5s") + "parameters: {profile: vgg16}\n")
        assert post(server, "/v2/repository/models/alias/load") == (200, b"{}")
        assert ask(server, "alias") == 200
        before = plans_of(server)
        load(server, "densenet161", 60, 7)
        until(lambda: plans_of(server) > before, lambda: server.log)
        assert "failed" not in server.log
        assert ask(server, "alias") == 200
        write_model(folder, "plain", MODEL.replace("platform: modelled\n", "").format(slo="5s"), PYTHON)
        assert post(server, "/v2/repository/models/plain/load") == (200, b"{}")
        for _ in range(30):
            assert [ask(server, model) for model in ("plain", "alias")] == [200, 200], server.log
            time.sleep(0.1)


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_server_that_is_ended_at_once(tmp_path, ends):
    folder = tmp_path / "models"
    write_model(folder, "densenet161", MODEL.format(slo="30s"))
    demands = tmp_path / "demands.toml"
    demands.write_text('[options]\nquantile = 0.5\n[[model]]\nname = "densenet161"\nslo = "30s"\nrate = 5\n')
    with serving(folder, tmp_path / "log", "--executor", "modelled", "--demand", str(demands)) as server:
        load(server, "densenet161", 60, 6)
        until(lambda: plans_of(server), lambda: server.log)
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) > 2  # an executor, a planner, and what multiprocessing adds
        if ends == signal.SIGINT:  # the second one ends it at once; a request keeps it from ending by itself
            thread = threading.Thread(target=lambda: suppressed(ask, server, "densenet161"))
            os.kill(min(executors(server)), signal.SIGSTOP)
            thread.start()
            time.sleep(0.3)
            server.process.send_signal(ends)
            time.sleep(0.3)
        server.process.send_signal(ends)
        server.process.wait(60)
        if ends == signal.SIGINT:
            thread.join()
            for child in children:  # the stopped process sees the end when it goes on
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGCONT)
        until(lambda: not any(alive(child) for child in children), lambda: str(children))


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def suppressed(act, *arguments):
    with contextlib.suppress(OSError, http.client.HTTPException):
        act(*arguments)
