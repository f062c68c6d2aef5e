"""Versions of a model: each reply is of the version that it names, whatever is loaded, fails to load, or goes."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.serve_process import serving, write_model
from tests.e2e.test_serve_life import get, wait_for

CONFIG = """
max_batch: 4
slo: 60s
inputs: [{name: X, datatype: FP32, shape: [1]}]
outputs: [{name: Y, datatype: FP32, shape: [1]}]
"""
WEIGHTS = """
import time
from pathlib import Path

def load(spec):
    folder = Path(__file__).parent
    (folder / "loading").touch()
    while (folder / "wait").exists():
        time.sleep(0.01)
    if (folder / "bad").exists():
        raise ValueError("bad weights")
    return lambda inputs: {"Y": inputs["X"] * 0 + spec.version}
"""


def write_version(repository, version):
    folder = repository / "m" / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(WEIGHTS)
    return folder


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "m", CONFIG)
    (folder / "m" / "1").rmdir()
    write_version(folder, 3)
    return folder


def post(server, path, body=""):
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def computed_by(server, version=None):
    """The version that a reply names, and the one that computed it; or the status of a refusal."""
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]})
    where = "" if version is None else f"/versions/{version}"
    status, reply = post(server, f"/v2/models/m{where}/infer", body)
    return (reply["model_version"], reply["outputs"][0]["data"]) if status == 200 else status


def states(server):
    return {entry["version"]: entry["state"] for entry in post(server, "/v2/repository/index")[1]}


OF_3, OF_7 = ("3", [3.0]), ("7", [7.0])


def test_no_reply_names_a_version_that_did_not_compute_it(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        assert computed_by(server) == OF_3
        folder = write_version(repository, 7)
        (folder / "wait").touch()
        loading = pool.submit(post, server, "/v2/repository/models/m/load")
        wait_for((folder / "loading").exists)
        assert [computed_by(server, version) for version in (None, 3, 7)] == [OF_3, OF_3, 404]
        assert states(server) == {"3": "READY", "7": "LOADING"}
        (folder / "wait").unlink()
        assert loading.result() == (200, {})
        assert [computed_by(server, version) for version in (None, 3, 7)] == [OF_7, 404, OF_7]
        assert states(server) == {"7": "READY"}


def test_a_version_that_cannot_be_loaded_labels_no_reply(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server:
        (write_version(repository, 7) / "bad").touch()
        status, reply = post(server, "/v2/repository/models/m/load")
        assert status == 500
        assert "bad weights" in reply["error"]
        assert [computed_by(server, version) for version in (None, 3, 7)] == [OF_3, OF_3, 404]
        assert states(server) == {"3": "READY", "7": "UNAVAILABLE"}


def test_versions_side_by_side(repository, tmp_path):
    write_version(repository, 7)
    (repository / "m" / "config.yaml").write_text(CONFIG + "versions: all\n")
    with serving(repository, tmp_path / "log") as server:
        assert [computed_by(server, version) for version in (None, 3, 7, 8)] == [OF_7, OF_3, OF_7, 404]
        assert json.loads(get(server, "/v2/models/m")[1])["versions"] == ["3", "7"]
        counted = json.loads(get(server, "/v2/models/m/stats")[1])["model_stats"]
        assert [(each["version"], each["inference_count"]) for each in counted] == [("3", 1), ("7", 2)]
        assert b'gemlet_serve_rows_total{model="m",version="3"} 1.0' in get(server, "/metrics")[1]
        (write_version(repository, 9) / "bad").touch()
        assert post(server, "/v2/repository/models/m/load")[0] == 200
        assert [computed_by(server, version) for version in (None, 3, 9)] == [OF_7, OF_3, 404]
        assert states(server) == {"3": "READY", "7": "READY", "9": "UNAVAILABLE"}
        (repository / "m" / "config.yaml").write_text(CONFIG + "versions: [3]\n")
        assert post(server, "/v2/repository/models/m/load")[0] == 200
        assert [computed_by(server, version) for version in (None, 3, 7)] == [OF_3, OF_3, 404]
