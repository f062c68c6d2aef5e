"""A repository written for Triton, served unchanged: its answers are those that a real Triton gave."""

from __future__ import annotations

import base64
import json
import shutil

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils

from tests.e2e.serve_process import serving
from tests.triton import client_probes, probes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(probes.REPOSITORY, tmp_path_factory.mktemp("triton") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def answered(server):
    address = f"http://{server.http}"
    return probes.ask_all(address), probes.metrics(address)


@pytest.fixture(scope="module")
def client_answers(server):
    return json.loads(json.dumps(client_probes.ask_all(server.http, server.grpc)))


@pytest.mark.parametrize("name", client_probes.PROBES)
def test_a_client_of_tritons_gets_what_triton_gives_it(client_answers, name):
    recorded = json.loads(probes.ANSWERS.read_text())["clients"]
    assert (client_answers[name] == recorded[name]) is (client_probes.reason(name) is None), [
        client_answers[name],
        recorded[name],
    ]


@pytest.mark.parametrize("name", probes.PROBES)
def test_an_answer_is_tritons_unless_a_reason_is_given(answered, name):
    recorded = json.loads(probes.ANSWERS.read_text())["probes"]
    assert (answered[0][name] == recorded[name]) is (name not in probes.DIFFERENCES), [
        answered[0][name],
        recorded[name],
    ]


def test_every_metric_of_tritons_is_there(answered):
    assert set(json.loads(probes.ANSWERS.read_text())["metrics"]) <= set(answered[1])


# Y = 2 X + 1, for rows of three numbers, made by onnx.helper: Mul and Add, opset 17.
SCALE = (
    "CAk6cQoOCgFYCgFhEgF0IgNNdWwKDgoBdAoBYhIBWSIDQWRkEgVzY2FsZSoNCAEQASIEAAAAQEIBYSoNCAEQASIEAA"
    "CAP0IBYloUCgFYEg8KDQgBEgkKAxIBTgoCCANiFAoBWRIPCg0IARIJCgMSAU4KAggDQgQKABAR"
)


def test_an_onnx_file_alone_is_a_model(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is the extra `onnx`")
    (tmp_path / "models" / "scale" / "1").mkdir(parents=True)
    (tmp_path / "models" / "scale" / "1" / "model.onnx").write_bytes(base64.b64decode(SCALE))
    with serving(tmp_path / "models", tmp_path / "log") as server:
        address = f"http://{server.http}"
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 3], "data": [0, 1, 2, 3, 4, 5]}]}
        status, answer = probes.ask(address, "/v2/models/scale/infer", body)
        _, metadata = probes.ask(address, "/v2/models/scale", None)
    assert (status, answer["outputs"][0]["data"]) == (200, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0])
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 3]}]


def test_a_decoupled_model_is_an_error_that_says_so(tmp_path):
    shutil.copytree(probes.REPOSITORY / "add_sub", tmp_path / "models" / "add_sub")
    with (tmp_path / "models" / "add_sub" / "config.pbtxt").open("a") as config:
        config.write("model_transaction_policy { decoupled: true }\n")
    with pytest.raises(AssertionError, match="decoupled models are not served: a request has one reply"):  # noqa: SIM117
        with serving(tmp_path / "models", tmp_path / "log"):
            pass


def test_tritons_client_gets_the_same_by_grpc(server):
    given = tritonclient.grpc.InferInput("X", [1, 2], "FP32")
    given.set_data_from_numpy(np.array([[0, 1]], dtype=np.float32))
    mode = tritonclient.grpc.InferInput("MODE", [1, 1], "BYTES")
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        mode.set_data_from_numpy(np.array([["tell"]], dtype=object))
        more = {"request_id": "seven", "parameters": {"mine": 3, "word": "x"}, "timeout": 5_000_000}
        answer = client.infer("says", [given, mode], **more)
        with_one = client.infer("says", [given], outputs=[tritonclient.grpc.InferRequestedOutput("Y")])
        mode.set_data_from_numpy(np.array([["code NOT_FOUND"]], dtype=object))
        with pytest.raises(tritonclient.utils.InferenceServerException, match=r"NOT_FOUND.*told to fail"):
            client.infer("says", [given, mode])
    recorded = json.loads(probes.ANSWERS.read_text())["probes"]["says tell, with an id and parameters"][1]
    texts = next(output["data"] for output in recorded["outputs"] if output["name"] == "TOLD")
    told, expected = json.loads(answer.as_numpy("TOLD")[0, 0]), json.loads(texts[0])
    for each in (told, expected):
        each["parameters"] = json.loads(each["parameters"])
    assert told == expected
    assert with_one.as_numpy("Y").tolist() == [[0, 2]]
    assert with_one.as_numpy("TOLD") is None
