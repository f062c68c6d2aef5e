"""tritonclient from PyPI, unmodified, over HTTP and gRPC, against `gemlet serve` without a GPU."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from gemlet.inference_protocol import inference_pb2 as messages
from tests.e2e.serve_process import serving, write_model

ADD = """
import grpc
import numpy as np

def infer(inputs):
    return {"SUM": inputs["A"] + inputs["B"], "DIFFERENCE": inputs["A"] - inputs["B"]}
"""
SHOUT = """
import grpc
import numpy as np

def infer(inputs):
    text = inputs["TEXT"]
    if any(each == b"break" for each in text.flat):
        raise ValueError("told to break")
    return {"LOUD": np.array([each.upper() for each in text.flat], dtype=object).reshape(text.shape)}
"""
PAIR = "[{name: A, datatype: INT32, shape: [4]}, {name: B, datatype: INT32, shape: [4]}]"
RESULTS = "[{name: SUM, datatype: INT32, shape: [4]}, {name: DIFFERENCE, datatype: INT32, shape: [4]}]"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("serve")
    repository = root / "models"
    write_model(repository, "add", f"max_batch: 8\nslo: 20s\ninputs: {PAIR}\noutputs: {RESULTS}\n", ADD)
    write_model(
        repository,
        "shout",
        "max_batch: 8\nslo: 20s\ninputs: [{name: TEXT, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: LOUD, datatype: BYTES, shape: [-1]}]\n",
        SHOUT,
    )
    write_model(
        repository,
        "echo",
        "platform: noop\nmax_batch: 64\nslo: 20s\ninputs: [{name: X, datatype: FP32, shape: [-1]}]\n"
        "outputs: [{name: Y, datatype: FP32, shape: [-1]}]\n",
    )
    write_model(
        repository,
        "whole",
        "max_batch: 0\nslo: 20s\ninputs: [{name: X, datatype: FP64, shape: [2, -1]}]\n"
        "outputs: [{name: Y, datatype: FP64, shape: [-1]}]\n",
        'def infer(inputs):\n    return {"Y": inputs["X"].sum(axis=0)}\n',
    )
    with serving(repository, root / "log") as running:
        yield running


def raw(server, path, data=None, headers=None, method="POST"):
    """Status, headers and body of one request."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(params=["http", "grpc"])
def kit(request):
    return CLIENTS[request.param]


@pytest.fixture
def client(server, kit):
    address = server.http if kit is tritonclient.http else server.grpc
    with kit.InferenceServerClient(address) as opened:
        yield opened


def tensor(kit, name, array, datatype=None):
    datatype = datatype or {"i": "INT32", "f": "FP32", "O": "BYTES"}[array.dtype.kind]
    given = kit.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def pair(kit, rows=2):
    a = np.arange(4 * rows, dtype=np.int32).reshape(rows, 4)
    return a, np.ones_like(a), [tensor(kit, "B", np.ones_like(a)), tensor(kit, "A", a)]


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("add", "1")
    metadata = client.get_server_metadata()
    assert (metadata["name"] if isinstance(metadata, dict) else metadata.name) == "gemlet"
    model = client.get_model_metadata("add")
    inputs = model["inputs"] if isinstance(model, dict) else [
        {"name": t.name, "datatype": t.datatype, "shape": [str(s) if False else s for s in t.shape]}
        for t in model.inputs
    ]  # fmt: skip
    assert inputs[0] == {"name": "A", "datatype": "INT32", "shape": [-1, 4]}
    config = client.get_model_config("add")
    assert (config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size) == 8


def test_sums(client, kit):
    a, b, inputs = pair(kit)
    result = client.infer("add", inputs, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("SUM"), a + b)
    np.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), a - b)
    response = result.get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "seven"


def test_only_the_outputs_asked_for(client, kit):
    a, b, inputs = pair(kit)
    result = client.infer("add", inputs, outputs=[kit.InferRequestedOutput("DIFFERENCE")])
    np.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), a - b)
    assert result.as_numpy("SUM") is None


def test_json_both_ways(server):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        a = np.arange(4, dtype=np.int32).reshape(1, 4)
        given = [tritonclient.http.InferInput(name, [1, 4], "INT32") for name in "AB"]
        for each in given:
            each.set_data_from_numpy(a, binary_data=False)
        wanted = [tritonclient.http.InferRequestedOutput("SUM", binary_data=False)]
        result = client.infer("add", given, outputs=wanted)
        np.testing.assert_array_equal(result.as_numpy("SUM"), 2 * a)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(server, algorithm):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        a, b, inputs = pair(tritonclient.http)
        result = client.infer("add", inputs, request_compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("SUM"), a + b)


def test_bytes(client, kit):
    text = np.array([[b"quiet", "für".encode()]], dtype=object)
    result = client.infer("shout", [tensor(kit, "TEXT", text)])
    np.testing.assert_array_equal(result.as_numpy("LOUD"), np.array([[b"QUIET", "für".encode().upper()]], dtype=object))


def test_classification(client, kit):
    x = np.array([[0.1, 0.7, 0.2]], dtype=np.float32)
    result = client.infer("echo", [tensor(kit, "X", x)], outputs=[kit.InferRequestedOutput("Y", class_count=2)])
    best = result.as_numpy("Y")[0]
    assert [each.split(b":")[1] for each in best] == [b"1", b"2"]


def test_classes_of_whole_numbers_are_whole(client, kit):
    _, _, inputs = pair(kit, rows=1)
    result = client.infer("add", inputs, outputs=[kit.InferRequestedOutput("SUM", class_count=2)])
    assert list(result.as_numpy("SUM")[0]) == [b"4:3", b"3:2"]


def test_a_body_without_json_is_the_only_input(server):
    x = np.array([1.5, 2.5, 3.5], dtype=np.float32)
    header = {"Inference-Header-Content-Length": "0"}
    status, told, body = raw(server, "/v2/models/echo/infer", x.tobytes(), header)
    end = int(told["Inference-Header-Content-Length"])
    described = {"name": "Y", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}
    assert (status, json.loads(body[:end])["outputs"], body[end:]) == (200, [described], x.tobytes())
    status, told, body = raw(server, "/v2/models/shout/infer", b"quiet", header)
    assert (status, body[int(told["Inference-Header-Content-Length"]) :]) == (200, b"\5\0\0\0QUIET")
    for model, message in (("add", "add has 2 inputs: expected 1"), ("nothing", "no model 'nothing'")):
        status, _, body = raw(server, f"/v2/models/{model}/infer", x.tobytes(), header)
        assert (status in {400, 404}, message in json.loads(body)["error"]) == (True, True)


def test_the_configuration_has_numbers(server):
    told = json.loads(raw(server, "/v2/models/add/config", method="GET")[2])
    assert [each["dims"] for each in told["input"]] == [[4], [4]]
    assert told["version_policy"] == {"specific": {"versions": [1]}}


def test_grpcs_own_health_check(server):
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        name = b"inference.GRPCInferenceService"
        assert check(b"", timeout=60) == check(b"\n%c%s" % (len(name), name), timeout=60) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\n\x05other", timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watched = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
        assert next(watched) == b"\x08\x01"
        watched.cancel()


def test_a_model_without_a_batch_dimension(client, kit):
    x = np.ones((2, 5))
    result = client.infer("whole", [tensor(kit, "X", x, "FP64")])
    np.testing.assert_array_equal(result.as_numpy("Y"), np.full(5, 2.0))


def test_many_at_once_keep_their_own_replies(server):
    with tritonclient.http.InferenceServerClient(server.http, concurrency=8) as client:
        given = [np.full((1, 4), number, dtype=np.int32) for number in range(100)]
        pending = [
            client.async_infer("add", [tensor(tritonclient.http, "A", a), tensor(tritonclient.http, "B", a)])
            for a in given
        ]
        for a, each in zip(given, pending, strict=True):
            np.testing.assert_array_equal(each.get_result().as_numpy("SUM"), 2 * a)


def test_a_stream(server):
    results = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: results.append((result, error)))
        for number in range(5):
            a = np.full((1, 4), number, dtype=np.int32)
            inputs = [tensor(tritonclient.grpc, "A", a), tensor(tritonclient.grpc, "B", a)]
            client.async_stream_infer("add", inputs, request_id=str(number))
        client.async_stream_infer("nothing", inputs, request_id="bad")
        client.stop_stream()
    assert len(results) == 6
    errors = [error for _, error in results if error is not None]
    assert len(errors) == 1
    assert "no model 'nothing'" in str(errors[0])
    sums = {int(r.get_response().id): r.as_numpy("SUM")[0, 0] for r, error in results if error is None}
    final = [r.get_response().parameters["triton_final_response"].bool_param for r, error in results if error is None]
    assert final == [True] * 5
    assert sums == {number: 2 * number for number in range(5)}


def test_system_shared_memory(server, client, kit):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    name = f"gemlet-test-{kit.__name__}-{server.process.pid}"
    handle = shm.create_shared_memory_region("both", f"/{name}", 2 * x.nbytes)
    try:
        shm.set_shared_memory_region(handle, [x])
        client.register_system_shared_memory("both", f"/{name}", 2 * x.nbytes)
        try:
            given = kit.InferInput("X", [2, 3], "FP32")
            given.set_shared_memory("both", x.nbytes)
            wanted = kit.InferRequestedOutput("Y")
            wanted.set_shared_memory("both", x.nbytes, offset=x.nbytes)
            result = client.infer("echo", [given], outputs=[wanted])
            told = result.get_output("Y")  # as Triton tells it: Triton's clients take parameters for binary data
            assert not (told.get("parameters") if isinstance(told, dict) else told.parameters)
            np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 3], x.nbytes), x)
            status = client.get_system_shared_memory_status()
            assert "both" in str(status)
        finally:
            client.unregister_system_shared_memory("both")
        with pytest.raises(InferenceServerException, match="no shared memory region"):
            client.infer("echo", [given], outputs=[wanted])
    finally:
        shm.destroy_shared_memory_region(handle)


def test_a_handle_that_is_none_is_refused_with_the_reason(client):
    with pytest.raises(InferenceServerException, match="64 bytes, this one has 48"):
        client.register_cuda_shared_memory("c", b"0" * 64, 0, 1024)


def test_clients_may_unregister_cuda_shared_memory_that_they_have_not(client):
    client.unregister_cuda_shared_memory()


def test_every_part_of_a_batch_is_counted_as_often(client, kit):
    """perf_analyzer ends where one is not."""
    client.infer("add", pair(kit)[2])
    stats = client.get_inference_statistics("add", as_json=True) if kit is tritonclient.grpc else (
        client.get_inference_statistics("add")
    )  # fmt: skip
    (model,) = stats["model_stats"]
    spans = ("compute_input", "compute_infer", "compute_output")
    counts = {int(model["inference_stats"][name]["count"]) for name in spans}
    assert len(counts) == 1
    assert counts.pop() > 0
    assert len({int(model["batch_stats"][0][name]["count"]) for name in spans}) == 1


def test_statistics_count_what_ran(client, kit):
    def count():
        stats = client.get_inference_statistics("add")
        if isinstance(stats, dict):
            return stats["model_stats"][0]["inference_count"]
        return stats.model_stats[0].inference_count

    before = count()
    client.infer("add", pair(kit, rows=3)[2])
    assert count() - before == 3


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("nothing", {}, "no model 'nothing'"),
        ("add", {"shape": [2, 5]}, "has shape"),
        ("add", {"shape": [9, 4]}, "expected 1 to 8"),
        ("add", {"name": "C"}, "add expects A, B"),
        ("add", {"datatype": "INT64"}, "expected INT32"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_message(client, kit, model, change, words):
    shape, name, datatype = change.get("shape", [2, 4]), change.get("name", "A"), change.get("datatype", "INT32")
    array = np.zeros(shape, dtype=np.int64 if datatype == "INT64" else np.int32)
    good = tensor(kit, "B", np.zeros((shape[0], 4), dtype=np.int32))
    with pytest.raises(InferenceServerException, match=words):
        client.infer(model, [tensor(kit, name, array, datatype), good])


def test_a_wrong_version_is_not_found(client, kit):
    with pytest.raises(InferenceServerException, match="no version 7 here"):
        client.infer("add", pair(kit)[2], model_version="7")


def test_what_a_model_raises_is_its_answer(client, kit):
    with pytest.raises(InferenceServerException, match="told to break"):
        client.infer("shout", [tensor(kit, "TEXT", np.array([[b"break"]], dtype=object))])
    result = client.infer("shout", [tensor(kit, "TEXT", np.array([[b"on"]], dtype=object))])
    assert result.as_numpy("LOUD")[0, 0] == b"ON"


def test_load_and_unload(client, kit):
    index = client.get_model_repository_index()
    states = {e["name"]: e["state"] for e in index} if isinstance(index, list) else {
        e.name: e.state for e in index.models
    }  # fmt: skip
    assert states["add"] == "READY"
    client.unload_model("add")
    assert not client.is_model_ready("add")
    with pytest.raises(InferenceServerException, match="no model 'add'"):
        client.infer("add", pair(kit)[2])
    client.load_model("add")
    assert client.is_model_ready("add")
    a, b, inputs = pair(kit)
    np.testing.assert_array_equal(client.infer("add", inputs).as_numpy("SUM"), a + b)
    with pytest.raises(InferenceServerException, match="failed to load 'absent'"):
        client.load_model("absent")


def fetch(server, path, data=None, headers=None):
    request = urllib.request.Request(f"http://{server.http}{path}", data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_metrics_and_plan_and_logs(server):
    status, _, text = fetch(server, "/metrics")
    assert status == 200
    assert b'gemlet_serve_requests_total{model="add",outcome="answered",version="1"}' in text
    assert json.loads(fetch(server, "/v2/plan")[2])["gpus"]
    assert fetch(server, "/v2/logs?lines=5")[0] == 200
    assert fetch(server, "/v2/health/ready")[0] == 200


def test_unknown_paths_and_methods_say_so(server):
    status, _, body = fetch(server, "/v3")
    assert (status, json.loads(body)["reason"]) == (404, "unknown")
    status, headers, _ = fetch(server, "/v2/health/live", data=b"")
    assert (status, headers["Allow"]) == (405, "GET")


def test_a_stream_whose_answers_are_not_read_is_not_read_either(server):
    """Else its answers would fill the server's memory."""
    request = messages.ModelInferRequest(model_name="echo")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 25_000])
    request.raw_input_contents.append(bytes(100_000))
    many, sent = 2000, []

    def requests():
        for number in range(many):
            sent.append(number)
            yield request

    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )(requests())
        before = -1
        while before != len(sent):
            before = len(sent)
            time.sleep(1.0)
        assert 0 < len(sent) < 1000
        assert sum(not answer.error_message for answer in call) == many
