"""Real sockets: a server whose stalls and refusals are known, and what the generator says of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import numpy as np
import pytest

from gemlet.cli import main
from gemlet.inference_protocol import inference_pb2
from gemlet.load import arrivals, inputs, measure, messages, model_metadata
from gemlet.load.job import Address, Job, LoadError, Stream
from tests.unit.load.fake_server import FakeServer

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.load.report import Report


def load(server: FakeServer, rate: float, seconds: float, **more: Any) -> Report:
    address = Address.parse(server.url)
    info = model_metadata.model(address, "m")
    made = inputs.make(info.inputs, 1, {}, np.random.default_rng(1))
    stream = Stream(
        model="m",
        rate=arrivals.constant(rate),
        messages=(messages.http(address, "m", made, binary=info.binary),),
        spread="uniform",
        slo_ms=more.pop("slo_ms", 1000.0),
    )
    count = more.pop("count", 1)
    return measure.measure(Job(address=address, streams=(stream,), seconds=seconds, **more), count=count)


def test_every_request_is_sent_once_whatever_the_number_of_processes() -> None:
    with FakeServer().running() as server:
        found = load(server, 200, 1.0, count=2)
    (model,) = found.models
    assert (model.requests, model.answered) == (199, 199)
    assert len(server.bodies) == 199
    assert found.processes == 2
    assert b'"shape":[1,2,3]' in server.bodies[0]


def test_a_stall_is_felt_by_everybody_who_came_while_it_lasted() -> None:
    stall_ends: list[float] = []

    def answer(number: int) -> tuple[float, int, str]:
        if number == 30 and not stall_ends:
            stall_ends.append(time.monotonic() + 0.6)
        return (max(0.0, stall_ends[0] - time.monotonic()) if stall_ends else 0.0, 200, "")

    with FakeServer(answer).running() as server:
        found = load(server, 100, 1.5)
    (model,) = found.models
    # A closed loop would have one slow request of 149. Here some 60 came during the stall and waited for its end.
    assert model.answered == 149
    assert model.percentiles[90] > 300
    assert model.most_ms is not None
    assert model.most_ms >= 590


def test_requests_that_cannot_be_sent_in_time_count_their_wait() -> None:
    with FakeServer(lambda _: (0.05, 200, "")).running() as server:
        found = load(server, 40, 1.0, connections=1)  # twice what one connection can do
    (model,) = found.models
    assert server.connections <= 6  # five asked for metadata, configuration and statistics, one sent
    assert model.answered == 39
    assert found.waited > 10
    assert model.most_ms is not None
    assert model.most_ms > 500  # the last ones waited for half of those before them
    assert "--connections" in (found.bottleneck or "")


def test_refusals_come_with_their_reasons() -> None:
    def answer(number: int) -> tuple[float, int, str]:
        return (0.0, 503, f"too late by {number} ms") if number % 2 else (0.0, 200, "")

    with FakeServer(answer).running() as server:
        (model,) = load(server, 100, 0.5).models
    assert model.refused == {"503 too late by # ms": 24}
    assert model.attainment == pytest.approx(25 / 49)


def test_a_server_that_closes_its_connections_loses_nobody_silently() -> None:
    server = FakeServer(close_after=3)
    with server.running():
        (model,) = load(server, 100, 0.5).models
    assert model.answered + sum(model.refused.values()) == model.requests == 49
    assert model.answered > 3  # as many as one connection gets: others were opened
    assert set(model.refused) <= {
        "connection closed by the server",
        "connection lost: [Errno #] Connection reset by peer",
    }


def test_the_servers_own_times_are_those_of_the_run() -> None:
    with FakeServer().running() as server:
        (model,) = load(server, 50, 0.4).models
    assert (model.queue_ms, model.infer_ms) == (pytest.approx(1.0), pytest.approx(5.0))


def test_a_reply_that_never_comes_is_not_waited_for_for_ever() -> None:
    with FakeServer(lambda number: (60.0 if number == 5 else 0.0, 200, "")).running() as server:
        (model,) = load(server, 50, 0.3, patience_s=0.3).models
    assert model.refused == {"no reply": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_run_with_what_there_is(tmp_path: Path, number: signal.Signals) -> None:
    with FakeServer().running() as server, (tmp_path / "out").open("w+") as out:
        command = [sys.executable, "-m", "gemlet", "load", server.url, "-m", "m", "--rate", "100:300:100"]
        more = ["--duration", "10m", "--processes", "2", "--every", "500ms", "-o", "json"]
        with subprocess.Popen([*command, *more], stdout=out, stderr=subprocess.PIPE, start_new_session=True) as process:
            deadline = time.monotonic() + 60
            while len(server.bodies) < 50 and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(process.pid, number)  # as a terminal does: to all of its processes
            assert process.wait(30) == 130
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        out.seek(0)
        (run,) = json.load(out)["runs"]  # no run follows at the next rate
        (model,) = run["models"].values()
        assert run["stopped"]
        assert 0.1 < run["seconds"] < 60
        assert model["answered"] == model["requests"] == len(server.bodies) >= 50
        assert sum(each["requests"] for each in model["intervals"]) == model["requests"]
        assert model["offered"] == pytest.approx(100, rel=0.5)


def test_a_long_report_arrives_whole() -> None:
    """More than the socket between the processes takes at once."""
    with FakeServer(lambda _: (60.0, 200, "")).running() as server:
        (model,) = load(server, 30_000, 1.0, connections=1, patience_s=0.1).models
    assert model.refused == {"no reply": model.requests}
    assert model.requests >= 29_999


def test_a_server_without_the_binary_extension_gets_json() -> None:
    with FakeServer(extensions=()).running() as server:
        (model,) = load(server, 50, 0.21).models
    assert model.answered == 10
    assert len(msgspec.json.decode(server.bodies[0])["inputs"][0]["data"]) == 6


def test_no_server_and_no_such_model(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main.run(["load", f"http://127.0.0.1:{port}", "-m", "m", "--rate", "1"]) == 1
    assert "error: no server at" in capsys.readouterr().err
    with FakeServer().running() as server, pytest.raises(LoadError, match="404") as caught:
        model_metadata.model(Address.parse(server.url), "nobody")
    assert "repository/index" in (caught.value.hint or "")


def test_the_verb_prints_json_and_holds_a_goal(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(lambda number: (0.0, 200 if number % 4 else 503, "")).running() as server:
        arguments = ["load", server.url, "-m", "m", "--rate", "50", "--slo", "1s", "--duration", "500ms"]
        assert main.run([*arguments, "--goal", "99%", "-o", "json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert main.run([*arguments, "--goal", "10%", "--rate", "20:40:20"]) == 0
        assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("m ")]) == 2
    assert document["schema"] == 1
    model = document["runs"][0]["models"]["m"]
    assert 0.5 < model["attainment"] < 0.9
    assert sum(model["refused"].values()) + model["answered"] == model["requests"]


def test_several_models_from_a_file_of_demands(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    demands = tmp_path / "demands.toml"
    demands.write_text(
        'duration = "520ms"\n[[model]]\nname = "m"\nslo = "1s"\nrate = { mean = 60, swing = 0.5, period = "1s" }\n'
        '[[model]]\nname = "m2"\nslo = "1s"\nrate = 20\narrivals = "uniform"\n'
    )

    class Two(FakeServer):
        async def reply(self, head: str, body: bytes) -> tuple[int, Any]:
            return await super().reply(head.replace("/m2", "/m"), body)

    with Two().running() as server:
        assert main.run(["load", server.url, str(demands), "-o", "json"]) == 0
    models = json.loads(capsys.readouterr().out)["runs"][0]["models"]
    assert models["m2"]["requests"] in {9, 10}
    assert models["m"]["requests"] > 15
    assert len(server.bodies) == models["m"]["requests"] + models["m2"]["requests"]


@pytest.mark.parametrize(("said", "slo_ms"), [("25", 25.0), ("", None), ("soon", None), ("-1", None), ("inf", None)])
def test_the_slo_is_the_servers_unless_one_is_given(said: str, slo_ms: float | None) -> None:
    class Telling(FakeServer):
        async def reply(self, head: str, body: bytes) -> tuple[int, Any]:
            if head.split()[1] == "/v2/models/m/config":
                return 200, {"name": "m", "parameters": {"slo_ms": {"string_value": said}}}
            return await super().reply(head, body)

    with Telling().running() as server:
        assert model_metadata.model(Address.parse(server.url), "m").slo_ms == slo_ms
    with FakeServer().running() as server:  # one without the extension
        assert model_metadata.model(Address.parse(server.url), "m").slo_ms is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "5"], "no model given"),
        (["-m", "m"], "exactly one of --rate"),
        (["-m", "m", "--rate", "fast"], "the rate is not valid"),
        (["-m", "m", "--rate", "1:2"], "from:to:step"),
        (["-m", "m", "--rate", "5", "--arrivals", "gamma"], "--variation"),
        (["-m", "m", "--rate", "5", "--duration", "5"], "--duration"),
        (["-m", "m", "--steps", "1s=5"], "the first at 0 s"),
        (["-m", "m", "--rate", "5", "--duration", "0s"], "expected more than 0"),
        (["-m", "m", "--rate", "5", "--duration", "1s", "--warmup", "1s"], "leaves nothing of 1 s"),
        (["-m", "m", "--rate", "5", "--times", "-1"], "leaves nothing to send"),
        (["-m", "m", "--rate", "5", "--times", "nan"], "leaves nothing to send"),
        (["-m", "m", "--rate", "1:inf:1"], "more than 10000 rates"),
        (["-m", "m", "--rate", "1:1e300:1"], "more than 10000 rates"),
        (["-m", "m", "--rate", "1:nan:1"], "more than 10000 rates"),
        (["-m", "m", "--rate", "5:1:1"], "the range from 5 to 1 is empty"),
        (["-m", "m", "--rate", "5", "--arrivals", "gamma", "--variation", "-1"], "is not above 0"),
        (["-m", "m", "--rate", "5", "--arrivals", "gamma", "--variation", "nan"], "is not above 0"),
        (["-m", "m", "--steps", "abc"], "not a list of moments and rates"),
        (["-m", "m", "--rate", "5", "--every", "0s"], "--every 0s is too short"),
        (["-m", "m", "--rate", "1e12"], "more than a generator can send"),
    ],
)
def test_what_makes_no_sense(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["load", "http://127.0.0.1:1", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_over_grpc() -> None:
    seen: list[Any] = []

    def infer(request: Any, context: grpc.ServicerContext) -> Any:
        seen.append(request)
        if len(seen) % 5 == 0:
            context.abort(grpc.StatusCode.UNAVAILABLE, "its deadline could not be met: 3.5 ms")
        return inference_pb2.ModelInferResponse(model_name="m")

    def metadata(request: Any, context: grpc.ServicerContext) -> Any:
        if request.name != "m":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        reply = inference_pb2.ModelMetadataResponse(name="m")
        reply.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
        return reply

    def config(request: Any, context: grpc.ServicerContext) -> Any:
        reply = inference_pb2.ModelConfigResponse()
        reply.config.parameters["slo_ms"].string_value = "40"
        return reply

    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            function,
            request_deserializer=getattr(inference_pb2, f"{name}Request").FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        for name, function in (("ModelInfer", infer), ("ModelMetadata", metadata), ("ModelConfig", config))
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    address = Address("grpc", "127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        info = model_metadata.model(address, "m")
        assert info.slo_ms == 40.0
        with pytest.raises(LoadError, match="NOT_FOUND no such model"):
            model_metadata.model(address, "other")
        message = messages.grpc("m", inputs.make(info.inputs, 2, {}, np.random.default_rng(1)))
        stream = Stream(model="m", rate=arrivals.constant(100), messages=(message,), spread="uniform", slo_ms=1000)
        (model,) = measure.measure(Job(address=address, streams=(stream,), seconds=0.5), count=1).models
    finally:
        server.stop(None).wait()
    assert model.requests == 49
    assert model.refused == {"UNAVAILABLE its deadline could not be met: # ms": 9}
    assert model.answered == 40
    assert model.queue_ms is None  # it has no statistics
    assert list(seen[0].inputs[0].shape) == [2, 4]
