"""The life of `gemlet serve`: what happens to requests when it ends, when an executor dies, when there are too many."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from tests.e2e.serve_process import COMMAND, serving, write_model

ONE = "inputs: [{name: X, datatype: FP32, shape: [1]}]\noutputs: [{name: Y, datatype: FP32, shape: [1]}]\n"
SLEEPY = """
from gemlet.serve.execution.backend import DeviceLost
import os, time
from pathlib import Path

def infer(inputs):
    seconds = float(inputs["X"][0, 0])
    if seconds < -1:
        raise DeviceLost("sleepy failed: an illegal address")
    if seconds < 0:
        os._exit(9)
    Path(__file__).with_name("began").touch()
    while seconds == 100 and not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    time.sleep(seconds % 100)
    return {"Y": inputs["X"]}
"""
BUSY = "platform: modelled\nmax_batch: 4\nslo: 60ms\nparameters: {profile: vgg16}\n" + ONE


def wait_for(what, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "sleepy", f"max_batch: 1\nslo: 120s\n{ONE}", SLEEPY)
    return folder


def ask(server, model, value, parameters=None, timeout=120):
    """Status, body and headers of one request on a connection of its own."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    try:
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}
        if parameters:
            body["parameters"] = parameters
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def get(server, path, method="GET"):
    """Status and body of one request without a body, on a connection of its own."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def post(server, path):
    return get(server, path, "POST")


def executors(server):
    return psutil.Process(server.process.pid).children()


def arrived(server, model):
    return json.loads(get(server, f"/v2/models/{model}/stats")[1])["model_stats"][0]["gemlet"]["arrived"]


UNTIL_RELEASED = 100.0  # as the value of a request to sleepy


def release(repository):
    (repository / "sleepy" / "1" / "go").touch()


def began(repository):
    return (repository / "sleepy" / "1" / "began").exists()


def test_what_ends_before_it_has_started_waits_for_no_model(tmp_path):
    load = 'import pathlib, time\npathlib.Path(__file__).with_name("began").touch()\ntime.sleep(1000)\n'
    folder = write_model(tmp_path / "models", "slow", "platform: python\nslo: 20s\n" + ONE, load)
    log = tmp_path / "log"
    with log.open("w") as words:
        process = subprocess.Popen(
            [*COMMAND, str(tmp_path / "models"), "--http-port", "0", "--grpc-port", "0"],
            stderr=words,
        )
    try:
        wait_for((folder / "1" / "began").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0  # a load may take half an hour
    finally:
        process.kill()
        process.wait()
    assert "ending before it has started" in log.read_text()


TELLS_NOTHING = """
import pathlib, time
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        pathlib.Path(__file__).with_name("began").touch()
        time.sleep(1000)
"""


@pytest.mark.parametrize("watched", [False, True])
def test_what_ends_while_a_model_is_asked_for_its_configuration_waits_for_none(repository, tmp_path, watched):
    def add():
        folder = repository / "mute" / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(TELLS_NOTHING)
        return folder / "began"

    with (
        serving(repository, tmp_path / "log", *(["--watch"] if watched else [])) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = add()
        loading = None if watched else pool.submit(post, server, "/v2/repository/models/mute/load")
        wait_for(asked.exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        if loading is not None:
            status, body = loading.result()
            assert (status, b"the server is ending" in body) == (503, True)
    asked.unlink()
    with (tmp_path / "log").open("w") as words:  # and at the start
        process = subprocess.Popen(
            [*COMMAND, str(repository), "--http-port", "0", "--grpc-port", "0"],
            stderr=words,
        )
    try:
        wait_for(asked.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "ending before it has started" in (tmp_path / "log").read_text()


@pytest.fixture
def with_a_terminal():
    """Where the tests run under nohup, a server would be told to stay when the terminal goes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_that_runs_is_answered_before_the_end(repository, tmp_path, number):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, server, "sleepy", 1.0)
        wait_for(lambda: began(repository))
        for each in (server.process.pid, *(child.pid for child in psutil.Process(server.process.pid).children(True))):
            os.kill(each, number)  # as systemd, or a terminal, to all
        assert running.result()[0] == 200
        assert server.process.wait(60) == 0
    assert "resource_tracker" not in (tmp_path / "log").read_text(), "which leaves the end to the server, too"


def test_clients_that_go_on_asking_all_get_their_answers_at_the_end(repository, tmp_path):
    write_model(repository, "echo", "platform: noop\nmax_batch: 4\nslo: 20s\n" + ONE)
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]})
    last, started = [], threading.Barrier(5)

    def go_on(server):
        host, _, port = server.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        for number in range(1_000_000):
            connection.request("POST", "/v2/models/echo/infer", body)
            response = connection.getresponse()
            response.read()
            if number == 0:
                started.wait(60)
            if response.headers["Connection"] == "close":
                last.append(response.status)
                connection.close()
                return

    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(go_on, server) for _ in range(4)]
        started.wait(60)
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.result()
        assert server.process.wait(60) == 0
    assert len(last) == 4
    assert set(last) <= {200, 503}


def test_a_request_that_is_half_here_at_the_end_gets_its_answer(repository, tmp_path):
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]}).encode()
    head = b"POST /v2/models/sleepy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(repository, tmp_path / "log") as server:
        host, _, port = server.http.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as half:
            half.sendall(head + body[:10])
            assert ask(server, "sleepy", 0.0)[0] == 200  # so that the server has read the first half
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "ending: " in server.log)
            time.sleep(0.3)  # by now everything else is over
            half.sendall(body[10:])
            assert half.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert server.process.wait(60) == 0


def test_what_takes_longer_than_the_drain_is_refused_with_a_message(repository, tmp_path):
    with serving(repository, tmp_path / "log", "--drain", "0.3") as server, ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(ask, server, "sleepy", 20.0) for _ in range(3)]
        wait_for(lambda: began(repository) and arrived(server, "sleepy") == 3)  # else some find the door closed
        server.process.send_signal(signal.SIGTERM)
        for request in requests:
            status, body, headers = request.result()
            assert status == 503
            assert body == {"error": "the server is ending", "reason": "unavailable"}
            assert headers["Retry-After"] == "1"
        assert server.process.wait(60) == 0


def test_a_second_interrupt_ends_at_once(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        request = pool.submit(ask, server, "sleepy", 25.0)
        wait_for(lambda: began(repository))
        children = executors(server)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        with pytest.raises((http.client.HTTPException, OSError)):
            request.result()
        wait_for(lambda: not any(child.is_running() for child in children))


def test_a_killed_executor_is_replaced_and_its_request_run_again(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        request = pool.submit(ask, server, "sleepy", 0.5)
        wait_for(lambda: began(repository))
        executors(server)[0].kill()
        assert request.result()[0] == 200
        assert b'gemlet_serve_executor_restarts_total{device="0"} 1.0' in get(server, "/metrics")[1]
        assert b'gemlet_serve_retried_total{model="sleepy",version="1"} 1.0' in get(server, "/metrics")[1]
        assert ask(server, "sleepy", 0.0)[0] == 200


@pytest.mark.parametrize("value", [-1.0, -2.0], ids=["its process", "the device"])
def test_a_request_that_kills_executors_is_refused_and_the_next_one_served(repository, tmp_path, value):
    with serving(repository, tmp_path / "log") as server:
        status, body, _ = ask(server, "sleepy", value)
        assert status == 500
        assert "died 2 times" in body["error"]
        assert ask(server, "sleepy", 0.0)[0] == 200
    assert ("its device is lost" in (tmp_path / "log").read_text()) is (value == -2.0)


def test_an_executor_that_hangs_is_replaced(repository, tmp_path):
    with serving(repository, tmp_path / "log", "--hang", "3") as server:
        status, body, _ = ask(server, "sleepy", 25.0)
        assert status == 500
        assert "died 2 times" in body["error"]
        assert ask(server, "sleepy", 0.0)[0] == 200


def test_a_changed_model_is_loaded_anew(repository, tmp_path):
    write_model(repository, "plain", f"slo: 20s\n{ONE}", "def infer(inputs): return {'Y': inputs['X'] + 1}\n")
    with serving(repository, tmp_path / "log") as server:
        assert ask(server, "plain", 1.0)[1]["outputs"][0]["data"] == [2.0]
        (repository / "plain" / "1" / "model.py").write_text("def infer(inputs): return {'Y': inputs['X'] + 2}\n")
        host, _, port = server.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", "/v2/repository/models/plain/load")
        assert connection.getresponse().status == 200
        connection.close()
        assert ask(server, "plain", 1.0)[1]["outputs"][0]["data"] == [3.0]


def test_every_request_of_an_overload_has_an_answer(tmp_path):
    write_model(tmp_path / "models", "busy", BUSY)
    with serving(tmp_path / "models", tmp_path / "log") as server:
        seen = Counter()
        words = set()

        def flood():
            for _ in range(40):
                status, body, _ = ask(server, "busy", 1.0, {"timeout": 15_000})
                seen[status] += 1
                if status != 200:
                    words.add((body["reason"], "the deadline is" in body["error"]))

        threads = [threading.Thread(target=flood) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(seen.values()) == 24 * 40
        assert seen.keys() <= {200, 504}
        assert words <= {("deadline", True)}
        text = get(server, "/metrics")[1].decode()
        answered = float(text.split('outcome="answered",version="1"} ')[1].split("\n")[0])
        late = sum(float(each.split("\n")[0]) for each in text.split('outcome="deadline",version="1"} ')[1:])
        assert (answered, late) == (seen[200], seen[504])
        assert "gemlet_serve_in_flight 0.0" in text


def test_a_deadline_that_passes_in_the_queue_is_told_at_once(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, "sleepy", UNTIL_RELEASED)
        wait_for(lambda: began(repository))
        status, body, _ = ask(server, "sleepy", 0.0, {"timeout": 100_000})
        assert status == 504
        assert "100 ms after arrival" in body["error"]
        assert not first.done()
        release(repository)
        assert first.result()[0] == 200


def test_requests_of_clients_that_are_gone_are_not_run(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, "sleepy", UNTIL_RELEASED)
        wait_for(lambda: began(repository))
        host, _, port = server.http.rpartition(":")
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [50.0]}]}).encode()
        head = b"POST /v2/models/sleepy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        clients = [socket.create_connection((host, int(port))) for _ in range(40)]
        for client in clients:
            client.sendall(head + body)
        with grpc.insecure_channel(server.grpc) as channel:
            given = messages.ModelInferRequest(model_name="sleepy", raw_input_contents=[struct.pack("<f", 50.0)])
            given.inputs.add(name="X", datatype="FP32", shape=[1, 1])
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            clients += [call.future(given.SerializeToString()) for _ in range(40)]
            wait_for(lambda: b'gemlet_serve_queue{model="sleepy",version="1"} 80.0' in get(server, "/metrics")[1])
            for client in clients:
                client.close() if isinstance(client, socket.socket) else client.cancel()
            wait_for(lambda: b'gemlet_serve_queue{model="sleepy",version="1"} 0.0' in get(server, "/metrics")[1])
        release(repository)
        assert first.result()[0] == 200
        assert ask(server, "sleepy", 0.0)[0] == 200  # and not after 80 x 50 s
        counted = json.loads(get(server, "/v2/models/sleepy/stats")[1])["model_stats"][0]
        assert (counted["gemlet"]["refused"], counted["execution_count"]) == ({"cancelled": 80}, 2)
        assert b"gemlet_serve_in_flight 0.0" in get(server, "/metrics")[1]


def test_higher_priority_goes_first(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, server, "sleepy", UNTIL_RELEASED)
        wait_for(lambda: began(repository))
        order = []

        def note(name, priority):
            assert ask(server, "sleepy", 0.05, {"priority": priority})[0] == 200
            order.append(name)

        low = pool.submit(note, "low", 3)
        wait_for(lambda: b'gemlet_serve_queue{model="sleepy",version="1"} 1.0' in get(server, "/metrics")[1])
        high = pool.submit(note, "high", 1)
        wait_for(lambda: b'gemlet_serve_queue{model="sleepy",version="1"} 2.0' in get(server, "/metrics")[1])
        release(repository)
        for each in (first, low, high):
            each.result()
        assert order == ["high", "low"]


def test_watched_files_are_followed(repository, tmp_path):
    with serving(repository, tmp_path / "log", "--watch") as server:
        write_model(repository, "late", "platform: noop\nslo: 5s\nmax_batch: 2\n" + ONE)
        wait_for(lambda: get(server, "/v2/models/late/ready")[0] == 200)
        assert ask(server, "late", 3.0)[1]["outputs"][0]["data"] == [3.0]
        config = repository / "late" / "config.yaml"
        config.write_text(config.read_text().replace("noop", "nonsense"))
        wait_for(lambda: "nonsense" in server.log)
        assert "config.yaml:1: platform" in server.log
        assert ask(server, "late", 3.0)[0] == 200
        for path in sorted(config.parent.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        config.parent.rmdir()
        wait_for(lambda: get(server, "/v2/models/late/ready")[0] == 404)


def test_the_log_can_be_followed(repository, tmp_path):
    with serving(repository, tmp_path / "log") as server:
        host, _, port = server.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/v2/logs?follow&lines=0")
        response = connection.getresponse()
        poster = http.client.HTTPConnection(host, int(port), timeout=60)
        poster.request("POST", "/v2/repository/models/sleepy/load")
        assert poster.getresponse().status == 200
        poster.close()
        assert b"model sleepy, version 1: loaded" in response.readline()
        server.process.terminate()
        response.read()
        connection.close()
        assert server.process.wait(60) == 0


def test_a_plan_from_a_file_and_shares_from_the_configuration(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "resnet50", "platform: modelled\nmax_batch: 32\nslo: 25ms\n" + ONE)
    demands = tmp_path / "demands.toml"
    demands.write_text('[[model]]\nname = "resnet50"\nslo = "25ms"\nrate = 300\n')
    plan = tmp_path / "plan.json"
    command = [*COMMAND[:-1], "plan", str(demands), "-o", "json"]
    plan.write_text(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    for options in (["--plan", str(plan)], ["--demand", str(demands)]):
        with serving(folder, tmp_path / "log", "--executor", "modelled", "--no-replan", *options) as server:
            told = json.loads(get(server, "/v2/plan")[1])
            assert told["policy"] == "nway+type"
            assert told["demands"][0]["rate"] == 300
            assert ask(server, "resnet50", 1.0, {"timeout": 0})[0] in {200, 504}
    write_model(folder, "resnet50", "platform: modelled\nmax_batch: 32\nsm: 30%\n" + ONE)
    with serving(folder, tmp_path / "log") as server:
        (gpu_let,) = json.loads(get(server, "/v2/plan")[1])["gpus"][0]["lets"]
        assert gpu_let["sm"] == 0.3
    write_model(folder, "other", "platform: noop\n" + ONE)
    write_model(folder, "bert", "platform: modelled\n" + ONE)
    code, words = failing(str(folder), "--plan", str(plan), "--http-port", "0", "--grpc-port", "none")
    assert code == 2
    assert "has no place for bert" in words


def failing(*arguments):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_port_in_use_is_an_error_with_a_hint(repository):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options in (["--http-port", port, "--grpc-port", "none"], ["--http-port", "none", "--grpc-port", port]):
            code, words = failing(str(repository), *options)
            assert code == 2, words
            assert f"port {port} is in use" in words
            assert "hint:" in words


def test_bad_files_are_all_named(repository, tmp_path):
    write_model(repository, "wrong", "platform: noop\nmax_batch: many\n" + ONE)
    write_model(repository, "worse", "inputs: [\n")
    code, words = failing(str(repository), "--http-port", "0", "--grpc-port", "none")
    assert code == 125
    assert "wrong/config.yaml:2: max_batch: expected" in words
    assert "worse/config.yaml" in words


def test_the_example_serves(tmp_path):
    folder = tmp_path / "example"
    code, _ = failing("--example", str(folder))
    assert code == 0
    with serving(folder, tmp_path / "log") as server:
        assert server.document["models"] == ["language", "resnet50"]
        if not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110
            assert "there is no GPU here" in server.log
        assert get(server, "/v2/health/ready")[0] == 200
    assert server.process.returncode == 0


@pytest.mark.parametrize("stuck", ["pipe", "full"])
def test_a_log_that_cannot_be_written_holds_up_nothing(tmp_path, stuck):
    """Clients cause lines of it."""
    write_model(tmp_path, "m", "platform: noop\n" + ONE)
    read, write = os.pipe()
    where = write if stuck == "pipe" else os.open("/dev/full", os.O_WRONLY)
    command = [*COMMAND, str(tmp_path), "--http-port", "0", "--grpc-port", "none", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=where, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, "the server did not start"
            if stuck == "pipe":
                os.set_blocking(write, False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(write, bytes(4096))
                os.set_blocking(write, True)
            with contextlib.closing(http.client.HTTPConnection(json.loads(line)["http"], timeout=60)) as connection:
                for _ in range(3):
                    connection.request("POST", "/v2/repository/models/m/load", "{}")
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == 200
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            for descriptor in {read, write, where}:
                os.close(descriptor)
