"""glet's JSON files: what of them a plan here takes over."""

from __future__ import annotations

import json

import pytest

from gemlet.cli.main import run
from gemlet.errors import ConfigError
from gemlet.serve.plan import glet_config

SCHEDULER = {
    "GPUs": [{"Type": "rtx2080ti", "Num": 2}, {"Type": "gtx1080", "Num": 0}],
    "Max Model": 2,
    "Part": 1,
    "Latency Ratio": 1.1,
    "Interference": 1,
    "Avail_Parts": [50, 60, 80, 100, 40, 20],
    "SLO Ratio": 1.0,
}
NODE = {
    "name": "first", "control_addr": "10.0.0.1:8081", "data_addr": "10.0.0.1:8082", "type": "x", "nGPUs": 3,
    "sizes": [100], "gpu_mem_size_mb": 11_000, "gpu_name": "2080ti",
}  # fmt: skip


def parsed(table):
    return glet_config.parse(json.dumps(table), "x.json")


def test_the_schedulers_file():
    read = parsed(SCHEDULER)
    assert (read.gpus, read.policy, read.memory_mib) == (2, "gpulet", None)
    assert read.changes == {"max_models": 2, "interference": True, "grid": 10}
    assert [note.partition(" is")[0].partition(":")[0] for note in read.notes] == [
        "Latency Ratio", "SLO Ratio", "Avail_Parts",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "policy"),
    [
        ({"Part": 0}, "timeshare"),
        ({"Interference": 0}, "gpulet-noint"),
        ({"Self Tuning": 1}, "selftuning"),
        ({"Part": None}, None),
    ],
)
def test_the_policy_is_what_glet_would_run(more, policy):
    assert parsed(SCHEDULER | more).policy == policy


def test_a_list_of_nodes_with_and_without_types():
    docker = {key: value for key, value in NODE.items() if key != "type"}
    read = parsed({"nodes": [NODE, docker | {"nGPUs": 1, "gpu_mem_size_mb": 10_000}]})
    assert read.gpus == 4
    assert read.memory_mib == pytest.approx(9536.7, abs=0.1)
    both = glet_config.merged([parsed(SCHEDULER), read])
    assert (both.gpus, both.policy, both.changes["max_models"], len(both.notes)) == (4, "gpulet", 2, 4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"GPUs": [{"Type": "a", "Num": 1}, {"Type": "b", "Num": 1}]}, "a and b: the file does not"),
        ({"nodes": [{"nGPUs": -1}]}, "not in the form that glet writes: Expected `int` >= 0"),
        ({"GPUs": [], "Avail_Parts": [0]}, "not in the form that glet writes"),
        ({"models": []}, "it is not one of glet's files"),
        ([], "not in the form that glet writes"),
    ],
)
def test_what_cannot_be_is_an_error_with_the_file(table, message):
    with pytest.raises(ConfigError, match=message) as raised:
        parsed(table)
    assert raised.value.path == "x.json"


def test_a_plan_by_glets_files(tmp_path, capsys):
    (tmp_path / "sim-config.json").write_text(json.dumps(SCHEDULER))
    (tmp_path / "rates.csv").write_text("2\n7,100,108,\n9,50,108,\n")
    files = [str(tmp_path / "rates.csv"), "--glet", str(tmp_path / "sim-config.json")]
    assert run(["plan", *files, "-o", "json"]) == 0
    told = capsys.readouterr()
    assert "Latency Ratio is ignored" in told.err
    made = json.loads(told.out)
    assert made["policy"] == "gpulet"
    assert all(round(10 * gpu_let["sm"], 6).is_integer() for gpu in made["gpus"] for gpu_let in gpu["lets"])
