"""A bad model beside a good one: what the good one loses, and what clients are told of the bad one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.serve_process import serving, write_model
from tests.e2e.test_serve_life import ask, get, wait_for
from tests.e2e.test_serve_versions import post

ONE = "slo: 60s\ninputs: [{name: X, datatype: FP32, shape: [1]}]\noutputs: [{name: Y, datatype: FP32, shape: [1]}]\n"
GOOD = "def infer(inputs): return {'Y': inputs['X'] + 1}\n"
DEADLY = "import os\ndef infer(inputs): os._exit(9)\n"
PICKY = """
import numpy as np
import time

def infer(inputs):
    time.sleep(0.2)
    if np.any(inputs["X"] < 0):
        raise ValueError("a negative row")
    return {"Y": inputs["X"] + 1}
"""
LEAK = """
import os
import resource

def leak():
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        pass
"""
FATAL_LOAD = "import os\nos._exit(9)\n"


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "good", f"max_batch: 8\n{ONE}", GOOD)
    return folder


def ready(server, model):
    return get(server, f"/v2/models/{model}/ready")[0]


def index(server):
    return {entry["name"]: entry for entry in post(server, "/v2/repository/index")[1]}


def test_a_model_that_kills_its_process_rests_and_its_neighbour_is_served(repository, tmp_path):
    write_model(repository, "deadly", f"max_batch: 8\n{ONE}", DEADLY)
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(24) as pool:
        bad = [pool.submit(ask, server, "deadly", 1.0) for _ in range(16)]
        good = [pool.submit(ask, server, "good", float(value)) for value in range(8)]
        assert [each.result()[0] for each in good] == [200] * 8
        told = [each.result() for each in bad]
        assert {status for status, _, _ in told} == {500, 503}
        assert sum(status == 500 for status, _, _ in told) <= 3
        resting = next((body, headers) for status, body, headers in told if status == 503)
        assert "rests for" in resting[0]["error"]
        assert int(resting[1]["Retry-After"]) >= 1
        for _ in range(3):  # it comes back on probation, and rests longer each time
            wait_for(lambda: ready(server, "deadly") == 200)
            wait_for(lambda: ask(server, "deadly", 1.0)[0] == 500)
        assert ready(server, "deadly") == 503
        entry = index(server)["deadly"]
        assert (entry["state"], "rests for" in entry["reason"]) == ("UNAVAILABLE", True)
        wait_for(lambda: ready(server, "good") == 200)
        assert get(server, "/v2/health/ready")[0] == 200
        assert ask(server, "good", 1.0)[1]["outputs"][0]["data"] == [2.0]
        assert index(server)["good"]["state"] == "READY"


def test_a_row_that_raises_fails_alone(repository, tmp_path):
    write_model(repository, "picky", f"max_batch: 8\n{ONE}", PICKY)
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(9) as pool:
        values = [1.0, *[float(value) for value in range(7)], -1.0]
        told = list(pool.map(lambda value: (value, ask(server, "picky", value)), values))
        for value, (status, body, _) in told:
            if value < 0:
                assert (status, "a negative row" in body["error"]) == (500, True)
            else:
                assert (status, body["outputs"][0]["data"]) == (200, [value + 1])
        batches = json.loads(get(server, "/v2/models/picky/stats")[1])["model_stats"][0]["batch_stats"]
        assert any(batch["batch_size"] > 1 for batch in batches), "nothing was batched, so nothing was tested"


def test_a_model_that_kills_its_process_while_it_is_loaded_is_refused(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server:
        write_model(repository, "fatal", ONE, FATAL_LOAD)
        status, reply = post(server, "/v2/repository/models/fatal/load")
        assert status == 500
        assert "the executor died while it loaded fatal" in reply["error"]
        wait_for(lambda: ready(server, "good") == 200)
        assert ask(server, "good", 1.0)[1]["outputs"][0]["data"] == [2.0]
        assert index(server)["fatal"]["state"] == "UNAVAILABLE"


def test_a_model_that_is_loaded_and_leaves_no_open_file_is_refused(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server:
        write_model(repository, "leaky", ONE, f"{LEAK}\nleak()\n{GOOD}")
        status, reply = post(server, "/v2/repository/models/leaky/load")
        assert status == 500
        assert "the executor died while it loaded leaky" in reply["error"]
        write_model(repository, "next", ONE, GOOD)
        wait_for(lambda: post(server, "/v2/repository/models/next/load")[0] == 200)
        assert ask(server, "next", 1.0)[1]["outputs"][0]["data"] == [2.0]


def test_a_model_that_leaks_its_open_files_keeps_no_other_from_being_loaded(repository, tmp_path):
    write_model(repository, "leaky", ONE, f"{LEAK}\ndef infer(inputs):\n    leak()\n    return {{'Y': inputs['X']}}\n")
    with serving(repository, tmp_path / "log") as server:
        assert ask(server, "leaky", 1.0)[0] == 200
        write_model(repository, "next", ONE, GOOD)
        wait_for(lambda: post(server, "/v2/repository/models/next/load")[0] == 200)  # by the next process
        assert ask(server, "next", 1.0)[1]["outputs"][0]["data"] == [2.0]
        wait_for(lambda: ready(server, "leaky") == 200)
    assert "keeps all files open" in (tmp_path / "log").read_text()


def test_a_model_that_cannot_be_loaded_again_is_left_out(repository, tmp_path):
    code = f"from pathlib import Path\nif Path(__file__).with_name('bad').exists(): {FATAL_LOAD}\n{DEADLY}"
    folder = write_model(repository, "later", ONE, code.replace(f": {FATAL_LOAD}", ": import os; os._exit(9)"))
    with serving(repository, tmp_path / "log") as server:
        assert ready(server, "later") == 200
        (folder / "1" / "bad").touch()
        assert ask(server, "later", 1.0)[0] in {500, 503}
        wait_for(lambda: ready(server, "good") == 200)
        assert ask(server, "good", 1.0)[1]["outputs"][0]["data"] == [2.0]
        assert ready(server, "later") == 503
        assert "executors died while they loaded later" in index(server)["later"]["reason"]
