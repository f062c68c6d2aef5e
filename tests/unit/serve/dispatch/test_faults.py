"""Requests at which a model raises: each is told so alone, and they cost others no more than good ones would."""

from __future__ import annotations

import asyncio
import struct
from unittest import mock

import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch import faults
from gemlet.serve.dispatch.dispatcher import Dispatcher
from gemlet.serve.dispatch.faults import DOUBTED_MS, Faults
from gemlet.serve.dispatch.request import Request
from gemlet.serve.models.specification import ModelError
from gemlet.serve.server.frontend.grpc_call import GrpcCall
from gemlet.serve.server.frontend.grpc_server import Asking, GrpcServer
from tests.unit.serve.dispatch.test_dispatcher import payloads, plan_of, send, task, ten_ms
from tests.unit.serve.dispatch.test_engine import Bench, scenario
from tests.unit.serve.dispatch.test_nested import Bench as Pipelines
from tests.unit.serve.stand_in import Service, connect, model

RUN_MS = 10.0
GOOD, OTHERS = 4, 16  # clients


async def run_one(bench):
    """Ends the run that is under way: the model raises at what is negative."""
    _, _, (x,), _, _ = bench.executor.runs[0]
    data = b"".join(bytes(part) for part in x.parts)
    bench.now += RUN_MS
    if min(struct.unpack(f"<{len(data) // 4}f", data)) < 0:
        await bench.executor.fail(ModelError("negative"))
    else:
        await bench.executor.answer()


async def waited_beside(client_of, value_of, runs=600):
    """Good clients, and others that send these values, each a request after the other: for how many runs each request
    of the good ones waited."""
    bench = Bench(model(platform="python", slo_ms=1000.0, max_batch=32))
    clients = [("good", lambda _: 1.0)] * GOOD + [(client_of(number), value_of) for number in range(OTHERS)]
    sent, under_way, waited = [0] * len(clients), {}, []
    for _ in range(runs):
        for number, (client, value) in enumerate(clients):
            if number in under_way:
                place, since = under_way[number]
                if bench.answers[place] is None:
                    continue
                if client == "good":
                    assert bench.answers[place] == [2.0]
                    waited.append((bench.now - since) / RUN_MS)
            under_way[number] = len(bench.answers), bench.now
            bench.send(value(sent[number]), client=client)
            sent[number] += 1
        await run_one(bench)
    return sorted(waited)


@pytest.mark.parametrize("client_of", ["other", "other {}"], ids=["one address", "many addresses"])
@pytest.mark.parametrize("bad_of_20", [20, 10, 1])
def test_inputs_that_raise_cost_the_others_no_more_than_as_many_good_ones(client_of, bad_of_20):
    def value(number):
        return -1.0 if number % 20 < bad_of_20 else 1.0

    async def both():
        return [await waited_beside(client_of.format, values) for values in (lambda _: 1.0, value)]

    beside_good, beside_bad = asyncio.run(both())
    for part in (0.5, 0.9):
        good, bad = (waited[int(part * len(waited))] for waited in (beside_good, beside_bad))
        assert bad <= 2 * good, (part, good, bad)


@scenario
async def test_a_batch_that_failed_is_answered_however_late_that_is():
    bench = Bench()
    bench.send(0.0)
    for value in (1.0, 2.0, -3.0, 4.0, 5.0):
        bench.send(value)
    bench.now = 80.0
    await bench.executor.answer()
    while bench.executor.runs:
        await run_one(bench)
    assert bench.now > 100.0
    assert [getattr(each, "message", each) for each in bench.answers] == [
        [0.0], [2.0], [4.0], "negative", [8.0], [10.0]
    ]  # fmt: skip
    assert bench.engine.in_flight == bench.engine.room.total == 0


@scenario
async def test_one_bad_request_of_many_takes_two_runs_for_each_halving():
    bench = Bench(model(platform="python", slo_ms=100.0, max_batch=32))
    bench.send(0.0)
    for number in range(32):
        bench.send(-1.0 if number == 20 else 1.0)
    await run_one(bench)
    runs = 0
    while bench.executor.runs:
        await run_one(bench)
        runs += 1
    assert [number for number, each in enumerate(bench.answers) if each not in ([0.0], [2.0])] == [21]
    assert runs == 1 + 2 * 5


@scenario
async def test_what_a_client_sent_before_its_fault_was_known_joins_no_batch_of_others():
    bench = Bench(model(platform="python", slo_ms=1000.0, max_batch=2))
    bench.send(-1.0, client="bad")
    for _ in range(4):
        bench.send(-1.0, client="bad")
        bench.send(1.0, client="good")
    runs = 0
    while None in (bench.answers[place] for place in (2, 4, 6, 8)):
        await run_one(bench)
        runs += 1
    assert runs <= 1 + 2 * 2


@scenario
async def test_a_model_that_was_loaded_anew_has_seen_no_faults():
    bench = Bench()
    bench.send(-1.0, client="bad")
    await run_one(bench)
    assert bench.engine._faults.doubted("echo", "bad", bench.now)
    bench.engine.adopt(*_again(bench, revision="2"))
    assert not bench.engine._faults


def _again(bench, **changes):
    """What adopt() takes, with the model changed."""
    found = []
    with mock.patch.object(bench.engine, "adopt", lambda *given: found.extend(given)):
        bench.adopt()
    return *found, {"echo": model(platform="python", slo_ms=100.0, **changes)}


@scenario
async def test_a_model_without_batches_doubts_nobody():
    bench = Bench(model(platform="python", slo_ms=100.0, max_batch=1))
    bench.send(-1.0, client="bad")
    await run_one(bench)
    assert not bench.engine._faults


def test_a_neighbour_on_the_gpu_let_waits_for_one_doubted_batch_at_a_time():
    known = Faults()
    known.failed("a", "bad", 0.0)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=1), task("b", batch=1)))), ten_ms, lambda _: 8, faults=known)
    (batch,) = send(queues, "b", 0.0)
    for number in range(3):
        queues.submit(Request("a", 1.0, 60.0, f"bad {number}", client="bad"))
        queues.submit(Request("b", 1.0, 90.0, f"good {number}"))
    order = []
    for now in range(10, 70, 10):
        (batch,) = queues.finish(batch, now)
        order += payloads(batch)
    assert order == ["bad 0", "good 0", "bad 1", "good 1", "bad 2", "good 2"]


def test_all_that_a_client_has_waiting_is_doubted_at_once_when_it_is_first():
    """Batch by batch, twenty thousand of a model without large batches stopped the event loop for half a second."""
    known, asked = Faults(), []

    def expects(place, rows):
        asked.append(rows)
        return 10.0

    says = mock.Mock(side_effect=expects, margin=lambda _: 0.0)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=1), task("b")))), says, lambda _: 2, faults=known)
    (batch,) = send(queues, "a", 0.0)
    for _ in range(500):
        queues.submit(Request("a", 0.0, 1e6, "bad", client="bad"))
    queues.submit(Request("b", 0.0, 1e6, "good"))
    known.failed("a", "bad", 1.0)
    for now in (2.0, 3.0):
        (batch,) = queues.finish(batch, now)
    assert len(queues.queues["a"].trusted) == 0
    assert len(asked) < 20


def test_requests_of_a_batch_that_failed_go_before_those_that_may_fail_one():
    known = Faults()
    known.failed("a", "bad", 0.0)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=4),))), ten_ms, lambda _: 4, faults=known)
    (batch,) = send(queues, "a", 0.0)
    queues.submit(Request("a", 1.0, 50.0, "urgent", priority=1, client="bad"))
    for number in range(4):
        queues.submit(Request("a", 1.0, 80.0, number, together=2))
    order = []
    for now in (10.0, 20.0, 30.0):
        (batch,) = queues.finish(batch, now)
        order.append(payloads(batch))
    assert order == [[0, 1], [2, 3], ["urgent"]]


def test_a_fault_counts_for_a_while(monkeypatch):
    monkeypatch.setattr(faults, "MAX_CLIENTS", 3)
    known = Faults()
    known.failed("a", "one", 0.0)
    assert known.doubted("a", "one", DOUBTED_MS - 1)
    assert not known.doubted("a", "one", DOUBTED_MS)
    assert not known.doubted("b", "one", 1.0)
    assert not known.doubted("a", "two", 1.0)
    for number in range(3):
        known.failed("a", f"client {number}", 1.0)
        known.failed("a", "one", 2.0)
    assert len(known) == 3
    assert known.doubted("a", "one", 3.0)
    assert not known.doubted("a", "client 0", 3.0)
    known.failed("a", "late", 2 * DOUBTED_MS)
    assert len(known) == 1
    known.forget({"a"})
    assert not known


def test_whose_a_request_is_is_known_by_either_protocol_and_of_models():
    async def run():
        service, calls = Service(), []
        service.engine.infer = calls.append
        connection, _ = connect(service)
        connection.peer = "uid 7"
        text = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'
        connection.data_received(
            b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        )
        request = messages.ModelInferRequest(model_name="echo", raw_input_contents=[b"abcd"])
        request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
        far = mock.Mock()
        far.peer = "10.0.0.1"
        Asking(GrpcServer(service), GrpcCall(far, 1), mock.Mock()).take(request.SerializeToString(), b"")
        assert [call.client for call in calls] == ["uid 7", "10.0.0.1"]
        bench, asked = Pipelines("ab"), []
        bench.send("a")
        with mock.patch.object(bench.engine, "infer", asked.append):
            bench.ask("a", "b")
        assert [call.client for call in asked] == ["model a"]

    asyncio.run(run())


async def run_and_keep_positive(bench):
    """Ends the run that is under way: the model gives a row for each that is positive, as one that finds things."""
    _, _, (x,), rows, _ = bench.executor.runs[0]
    data = b"".join(bytes(part) for part in x.parts)
    bench.now += RUN_MS
    kept = sum(value >= 0 for value in struct.unpack(f"<{len(data) // 4}f", data))
    await bench.executor.answer(rows=kept if kept < rows else None)


@scenario
async def test_an_output_of_other_rows_fails_the_request_that_it_is_for():
    bench = Bench(model(platform="python", slo_ms=1000.0, max_batch=8))
    bench.send(0.0)
    for value in (1.0, -2.0, 3.0, 4.0):
        bench.send(value, client=f"client of {value}")
    while bench.executor.runs:
        await run_and_keep_positive(bench)
    assert [getattr(each, "message", each) for each in bench.answers] == [
        [0.0], [2.0], "echo gave an output of shape [0, 1] for a batch of 1 rows", [6.0], [8.0]
    ]  # fmt: skip
    assert bench.engine._faults.doubted("echo", "client of -2.0", bench.now)
    assert not bench.engine._faults.doubted("echo", "client of 3.0", bench.now)
    assert bench.engine.in_flight == bench.engine.room.total == 0


@scenario
async def test_a_batch_of_other_rows_runs_again_where_its_own_gpu_let_is_no_more():
    bench = Bench(model(platform="python", slo_ms=1000.0, max_batch=8))
    bench.send(0.0)
    for value in (1.0, 2.0):
        bench.send(value)
    await bench.executor.answer()
    bench.adopt(offset=1)
    await bench.executor.answer(rows=1)
    while bench.executor.runs:
        await bench.executor.answer()
    assert bench.answers == [[0.0], [2.0], [4.0]]
