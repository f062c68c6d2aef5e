"""`gemlet serve --ray` on a real Ray cluster of several nodes, all on this machine: `make ray-test`."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gemlet.cli import main
from tests.e2e.serve_process import serving, write_model

ray = pytest.importorskip("ray", reason="`make ray-test` installs Ray")
from ray.cluster_utils import Cluster  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELLED = """
platform: modelled
max_batch: 32
slo: 20s
inputs: [{name: X, datatype: FP32, shape: [4]}]
outputs: [{name: Y, datatype: FP32, shape: [4]}]
"""
DEADLINE_S = 90.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=2)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in ("resnet50", "vgg16"):
        write_model(folder, name, MODELLED)
    return folder


def ask(url: str, model: str = "resnet50") -> Any:
    body = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    request = urllib.request.Request(f"http://{url}/v2/models/{model}/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def raylet(node: Any) -> int:
    """The process that a node is."""
    return int(node.all_processes["raylet"][0].process.pid)


def executors(cluster: Cluster) -> list[int]:
    """Raylets of the cluster that executors' processes belong to, once for each: Ray tells those in the environment."""
    raylets = {raylet(node) for node in cluster.list_all_nodes()}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "gemlet.serve.execution.worker" in process.cmdline():
                found.append(int(process.environ().get("RAY_RAYLET_PID", 0)))
    return [pid for pid in found if pid in raylets]


def test_executors_on_several_nodes_answer_and_a_lost_node_is_replaced(
    cluster: Cluster, repository: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    arguments = ("--ray", cluster.address, "--executor", "modelled")
    with serving(repository, log, *arguments) as server:
        assert ask(server.http)["outputs"][0]["shape"] == [1, 4]
        assert ask(server.http, "vgg16")["outputs"][0]["shape"] == [1, 4]
        assert len(executors(cluster)) == 3  # as many as there are nodes
        nodes = set(executors(cluster))
        assert len(nodes) >= 2  # and Ray spread them
        # A node that holds an executor goes, while requests come.
        victim = next(node for node in cluster.worker_nodes if raylet(node) in nodes)
        failures: list[str] = []
        answers: list[Any] = []
        ended = threading.Event()

        def keep_asking() -> None:
            while not ended.is_set():
                try:
                    answers.append(ask(server.http))
                except OSError as error:
                    failures.append(error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error))
                time.sleep(0.05)

        thread = threading.Thread(target=keep_asking)
        thread.start()
        cluster.remove_node(victim, allow_graceful=False)
        deadline = time.monotonic() + DEADLINE_S
        while "is there" not in server.log.partition(" is lost")[2] and time.monotonic() < deadline:
            time.sleep(0.2)
        ended.set()
        thread.join()
        assert " is lost" in server.log
        assert "is there" in server.log.partition(" is lost")[2], server.log
        assert len(executors(cluster)) == 3  # on the nodes that are left
        assert len(answers) > 10
        assert not failures, server.log
        assert ask(server.http)["outputs"][0]["shape"] == [1, 4]
    assert server.process.returncode == 0
    deadline = time.monotonic() + DEADLINE_S
    while executors(cluster) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not executors(cluster)  # they end with it


def test_what_cannot_be_had_is_said(cluster: Cluster, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--ray", cluster.address, "--executor", "green"], "no GPU"),
        (["--ray", cluster.address, "--executor", "mps"], "one for each gpu-let"),
        (["--ray", cluster.address, "--executor", "modelled", "--devices", "7"], "no device 7"),
    ):
        assert main.run(["serve", str(repository), *arguments]) == 2
        assert message in capsys.readouterr().err
        ray.shutdown()
