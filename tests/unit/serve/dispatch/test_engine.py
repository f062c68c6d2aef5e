"""The engine with executors that are none: batches, retries, refusals; each call is answered once."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from unittest import mock

import msgspec
import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch import batch_tensors, engine
from gemlet.serve.dispatch.call import Call, Refusal, Tensor, check
from gemlet.serve.dispatch.engine import EMPTY, Engine, Route
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.executor import ExecutorDied, Result
from gemlet.serve.models.specification import ModelError
from gemlet.serve.plan.model import Gpu, PlannedGpuLet
from gemlet.serve.server.fleet import whole_task
from tests.unit.serve.stand_in import model


class Executor:
    """Keeps its batches until the test says how they end."""

    def __init__(self):
        self.died = asyncio.Event()
        self.runs = []
        self.nestings = []

    def run(self, gpu_let, name, inputs, rows, requests=(), *, nesting=protocol.OUTERMOST):
        future = asyncio.get_running_loop().create_future()
        self.runs.append((gpu_let, name, inputs, rows, future))
        self.nestings.append(nesting)
        return future

    async def answer(self, *, doubled=True, rows=None):
        """Ends the oldest run: Y is twice X."""
        _, _, (x,), count, future = self.runs.pop(0)
        data = b"".join(bytes(part) for part in x.parts)
        values = [2 * value for value in struct.unpack(f"<{len(data) // 4}f", data)]
        shape = (count if rows is None else rows, *x.shape[1:])
        out = struct.pack(f"<{len(values)}f", *values)
        future.set_result(Result(((protocol.ArenaTensor("Y", "FP32", shape, 0, len(out)), memoryview(out)),), 1.0))
        await asyncio.sleep(0)

    async def fail(self, error):
        self.runs.pop(0)[-1].set_exception(error)
        await asyncio.sleep(0)


class Bench:
    """An engine of one model on one gpu-let, with a clock that only the test moves."""

    def __init__(self, spec=None, gpu_lets=1, **options):
        self.now = 0.0
        self.spec = spec or model(platform="python", slo_ms=100.0)
        self.engine = Engine(clock=lambda: self.now, **options)
        self.engine.models[self.spec.name] = ServedModel(self.spec)
        self.executors = [Executor() for _ in range(gpu_lets)]
        self.answers = []
        self.adopt()

    def adopt(self, *, offset=0):
        tasks = (whole_task(self.spec),) if self.spec.name in self.engine.models else ()
        gpus = tuple(
            Gpu(index=index, memory_mib=0, gpu_lets=(PlannedGpuLet(sm=1.0, duty_ms=0, occupancy=0, tasks=tasks),))
            for index in range(len(self.executors))
        )
        plan = msgspec.structs.replace(EMPTY, gpus=gpus)
        self.engine.adopt(plan, lambda gpu_let: Route(self.executors[gpu_let.gpu], f"gpu{gpu_let.gpu}/let{offset}"))

    def send(self, *values, **more):
        """One request of as many rows."""
        data = struct.pack(f"<{len(values)}f", *values)
        given = [Tensor("X", "FP32", (len(values), 1), data)]
        place = len(self.answers)
        self.answers.append(None)

        def answer(result):
            assert self.answers[place] is None, "answered twice"
            self.answers[place] = (
                result
                if isinstance(result, Refusal)
                else [
                    value
                    for tensor in result.outputs
                    for value in struct.unpack(f"<{len(tensor.data) // 4}f", tensor.data)
                ]
            )

        call = Call(self.spec.name, given, answer, self.now, **more)
        self.engine.infer(call)
        return call

    @property
    def executor(self):
        return self.executors[0]


def scenario(test):
    def run():
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@scenario
async def test_what_waits_becomes_one_batch_and_each_gets_its_own_rows():
    bench = Bench()
    bench.send(1.0)
    bench.send(2.0, 3.0)
    bench.send(4.0)
    assert [run[3] for run in bench.executor.runs] == [1]
    await bench.executor.answer()
    assert [run[3] for run in bench.executor.runs] == [3]
    await bench.executor.answer()
    assert bench.answers == [[2.0], [4.0, 6.0], [8.0]]
    assert bench.engine.in_flight == 0
    assert bench.engine.room.total == 0
    counted = bench.engine.models["echo"].statistics
    assert (counted.success.count, counted.rows, counted.batches.keys()) == (3, 4, {1, 3})


@scenario
async def test_a_gpu_let_goes_on_when_an_answer_fails():
    """Whatever it is that was not foreseen: it costs the requests of one batch."""
    bench = Bench()
    call = bench.send(1.0)
    call.answer = mock.Mock(side_effect=UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"))
    bench.send(2.0)
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers[1] == [4.0]
    assert bench.engine.in_flight == 0


@scenario
async def test_a_request_of_many_rows_is_not_divided():
    bench = Bench()
    bench.send(0.0)
    bench.send(*[1.0] * 5)
    bench.send(*[2.0] * 5)
    await bench.executor.answer()
    assert [run[3] for run in bench.executor.runs] == [5]
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers[2] == [4.0] * 5


@pytest.mark.parametrize("ends", ["answer", "fail", "die"])
def test_a_batch_that_is_too_large_to_be_copied_at_once_goes_in_parts_one_after_another(monkeypatch, ends):
    monkeypatch.setattr(batch_tensors, "PART_BYTES", 8)

    @scenario
    async def run():
        bench = Bench()
        bench.send(0.0)
        for values in ((1.0,), (2.0,), (3.0, 4.0, 5.0), (6.0,)):
            bench.send(*values)
        await bench.executor.answer()
        sizes = []
        while bench.executor.runs:
            ((_, _, _, rows, _),) = bench.executor.runs
            sizes.append(rows)
            if ends == "answer" or len(sizes) != 2:
                await bench.executor.answer()
            elif ends == "fail":
                await bench.executor.fail(ModelError("no"))
            else:
                bench.executor.died.set()
                await bench.executor.fail(ExecutorDied("died"))
                await bench.executor.fail(GpuLetGone("not running"))
        assert sizes == ([2, 3, 1] if ends != "die" else [2, 3])
        assert bench.answers[:3] == [[0.0], [2.0], [4.0]]
        if ends == "die":
            assert bench.answers[3:] == [None, None]
            assert bench.engine.waiting("echo") == 2
        else:
            assert bench.answers[4] == [12.0]
            assert bench.engine.in_flight == 0
            assert bench.answers[3] == [6.0, 8.0, 10.0] or bench.answers[3].message == "no"

    run()


@scenario
async def test_requests_of_different_shapes_do_not_share_a_run():
    bench = Bench()

    def note(at, result):
        bench.answers[at] = [tensor.shape for tensor in result.outputs]

    bench.send(0.0)
    for width in (1, 2, 1):
        given = [Tensor("X", "FP32", (1, width), bytes(4 * width))]
        bench.answers.append(None)
        bench.engine.infer(Call("echo", given, partial(note, len(bench.answers) - 1), 0.0))
    await bench.executor.answer()
    assert sorted((run[2][0].shape, run[3]) for run in bench.executor.runs) == [((1, 2), 1), ((2, 1), 2)]
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers[1:] == [[(1, 1)], [(1, 2)], [(1, 1)]]


@scenario
async def test_a_batch_whose_executor_died_is_run_once_more_elsewhere():
    bench = Bench(gpu_lets=2)
    bench.send(1.0)
    bench.executor.died.set()
    await bench.executor.fail(ExecutorDied("gone"))
    assert bench.executor.runs == []
    assert len(bench.executors[1].runs) == 1
    await bench.executors[1].answer()
    assert bench.answers == [[2.0]]
    assert bench.engine.models["echo"].statistics.retried == 1


@scenario
async def test_a_batch_that_two_executors_died_of_is_refused():
    bench = Bench(gpu_lets=2)
    bench.send(1.0)
    for executor in bench.executors:
        executor.died.set()
        await executor.fail(ExecutorDied("gone"))
    assert bench.answers[0].reason == "failed"
    assert "died 2 times" in bench.answers[0].message


@scenario
async def test_what_waits_for_a_dead_executor_is_served_by_the_next():
    bench = Bench()
    bench.executor.died.set()
    bench.engine.suspend(bench.executor)
    bench.send(1.0)
    assert bench.executor.runs == []
    fresh = Executor()
    bench.engine.resume(fresh, bench.executor)
    await fresh.answer()
    assert bench.answers == [[2.0]]


@scenario
async def test_nothing_is_lost_when_the_plan_changes_under_a_batch():
    bench = Bench()
    bench.send(1.0)
    bench.send(2.0)
    bench.adopt(offset=1)
    settled = asyncio.create_task(bench.engine.settled())
    await asyncio.sleep(0)
    assert not settled.done()
    assert [run[0] for run in bench.executor.runs] == ["gpu0/let0", "gpu0/let1"]
    await bench.executor.answer()
    await settled
    await bench.executor.answer()
    assert bench.answers == [[2.0], [4.0]]


@scenario
async def test_a_gpu_let_that_is_gone_costs_nobody_a_try():
    bench = Bench()
    bench.send(1.0)
    for _ in range(5):
        await bench.executor.fail(GpuLetGone("newer partition"))
        assert not bench.executor.runs  # it would be gone again, as long as this plan is in force
        bench.adopt()
    await bench.executor.answer()
    assert bench.answers == [[2.0]]


@scenario
async def test_what_a_model_raises_is_the_answer_of_its_batch_only():
    bench = Bench()
    bench.send(1.0)
    bench.send(2.0)
    await bench.executor.fail(ModelError("bad weather"))
    await bench.executor.answer()
    assert (bench.answers[0].reason, bench.answers[0].message) == ("failed", "bad weather")
    assert bench.answers[1] == [4.0]


@scenario
async def test_outputs_of_other_rows_are_a_failure_of_the_model():
    bench = Bench()
    bench.send(1.0)
    await bench.executor.answer(rows=3)
    assert "gave an output of shape [3, 1] for a batch of 1 rows" in bench.answers[0].message


@scenario
async def test_a_server_that_ends_refuses_what_is_new():
    bench = Bench()
    bench.send(1.0)
    bench.engine.closing = "the server is ending"
    bench.send(2.0)
    assert (bench.answers[1].reason, bench.answers[1].retry_s) == ("unavailable", 1)
    await bench.executor.fail(ExecutorDied("closed"))
    assert bench.answers[0].reason == "unavailable"


@scenario
async def test_a_queue_has_an_end():
    bench = Bench()
    bench.send(0.0)
    bench.engine.room.places = 6
    for _ in range(4):
        bench.send(1.0)
    assert bench.answers[-1].reason == "overload"
    assert bench.answers[:-1] == [None] * 4
    await bench.executor.answer()
    await bench.executor.answer()
    assert None not in bench.answers


@scenario
async def test_a_request_counts_with_all_that_its_inputs_keep():
    bench = Bench()
    bench.send(1.0)
    bench.send(1.0, request_bytes=1000)
    assert bench.engine.room.total == 1000
    await bench.executor.answer()
    assert bench.engine.room.total == 0


@scenario
async def test_a_model_whose_requests_pile_up_leaves_room_to_others():
    bench = Bench()
    bench.engine.room.most = 80
    for number in range(30):
        bench.send(1.0, client=f"client {number}")  # four bytes each; the first does not wait
    refused = [answer for answer in bench.answers if answer is not None]
    assert (len(refused), {each.reason for each in refused}) == (19, {"overload"})
    assert bench.engine.room.of("echo") == 40
    assert bench.engine.room.enter("other", "", 40) == ""
    bench.engine.room.leave("other", "", 40)
    while bench.executor.runs:
        await bench.executor.answer()
    assert bench.engine.room.total == 0
    assert bench.engine.room.enter("echo", "", 80) == ""


@scenario
async def test_an_unloaded_model_answers_what_was_under_way():
    bench = Bench()
    bench.send(1.0)
    bench.send(2.0)
    del bench.engine.models["echo"]
    bench.adopt()
    await bench.executor.answer()
    assert bench.answers[0] == [2.0]
    assert bench.answers[1].reason == "unavailable"
    assert bench.engine.in_flight == 0


def test_inputs_in_any_order_are_brought_into_the_models():
    spec = model(inputs=(("A", "FP32", (1,)), ("B", "BYTES", (2,))))
    a = Tensor("A", "FP32", (1, 1), bytes(4))
    b = Tensor("B", "BYTES", (1, 2), tensors.pack([b"x", b""]))
    given = [b, a]
    assert check(spec, given) == 1
    assert given == [a, b]
    b.data = b.data[:-1]
    with pytest.raises(Refusal, match="BYTES end within element 1"):
        check(spec, given)
    with pytest.raises(Refusal, match="the request has the inputs A, A: echo expects A, B"):
        check(spec, [a, a])


@scenario
async def test_what_waits_and_does_not_fit_a_model_that_was_loaded_anew_is_refused():
    bench = Bench()
    for value in (1.0, 2.0):
        bench.send(value)
    other = model(inputs=(("X", "FP32", (-1,)), ("Z", "FP32", (-1,))), platform="python", slo_ms=100.0)
    bench.engine.models["echo"] = ServedModel(other)
    await bench.executor.answer()
    assert isinstance(bench.answers[0], list)
    assert bench.answers[1].reason == "invalid"
    assert "was reloaded while the request waited" in bench.answers[1].message
    assert (bench.engine.in_flight, bench.engine.room.total, bench.executor.runs) == (0, 0, [])
    bench.engine.models["echo"] = ServedModel(bench.spec)
    bench.send(3.0)
    assert len(bench.executor.runs) == 1  # the gpu-let is free


@scenario
async def test_what_waits_and_fits_a_model_that_was_loaded_anew_is_served():
    bench = Bench()
    for value in (1.0, 2.0):
        bench.send(value)
    bench.engine.models["echo"] = ServedModel(msgspec.structs.replace(bench.spec, revision="2"))
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers == [[2.0], [4.0]]


@scenario
async def test_one_row_that_raises_does_not_fail_those_it_was_batched_with():
    bench = Bench()
    bench.send(0.0)
    for value in (1.0, 2.0, 3.0, 4.0):
        bench.send(value)
    await bench.executor.answer()
    assert [run[3] for run in bench.executor.runs] == [4]
    await bench.executor.fail(ModelError("3 is bad"))
    for rows, fails in ((2, False), (2, True), (1, True), (1, False)):
        assert [run[3] for run in bench.executor.runs] == [rows]
        await (bench.executor.fail(ModelError("3 is bad")) if fails else bench.executor.answer())
    assert [getattr(each, "message", each) for each in bench.answers] == [[0.0], [2.0], [4.0], "3 is bad", [8.0]]
    bench.send(5.0)
    assert len(bench.executor.runs) == 1  # the gpu-let is free again


@scenario
async def test_requests_of_clients_that_are_gone_are_not_run():
    bench = Bench()
    calls = [bench.send(float(value)) for value in range(5)]
    for call in calls[:4]:
        bench.engine.cancel(call)
    await asyncio.sleep(0)
    assert bench.engine.in_flight == 2  # what runs ends where it runs
    await bench.executor.answer()
    assert [run[3] for run in bench.executor.runs] == [1]
    await bench.executor.answer()
    assert bench.answers == [None] * 4 + [[8.0]]
    assert (bench.engine.in_flight, bench.engine.room.total) == (0, 0)
    assert bench.engine.models["echo"].statistics.refused == {"cancelled": 4}


@scenario
async def test_where_much_waits_clients_that_go_have_all_of_it_looked_at_now_and_then_only():
    bench = Bench()
    calls = [bench.send(float(value)) for value in range(5)]
    with mock.patch.object(engine, "FEW", 4), mock.patch.object(engine, "SWEEP_S", 3600.0):
        for call in calls[1:]:
            bench.engine.cancel(call)
            await asyncio.sleep(0)
    assert bench.engine.in_flight == 5
    bench.engine._sweep()
    assert bench.engine.in_flight == 1


@scenario
async def test_whether_a_model_runs_is_known_without_a_look_at_each_gpu_let():
    """Clients ask it of all models at once, and each may have a gpu-let of its own: ten thousand took ten seconds."""

    class Places(dict):
        looked = 0

        def __contains__(self, name):
            Places.looked += 1
            return super().__contains__(name)

    bench = Bench(gpu_lets=50)
    for gpu_let in bench.engine._dispatcher.gpu_lets:
        gpu_let.places = Places(gpu_let.places)
    assert bench.engine.serves(bench.spec.label)
    assert bench.engine.why_not("other") == "no gpu-let serves it"
    assert Places.looked == 0


@scenario
async def test_a_request_that_names_a_version_waits_for_that_version():
    bench = Bench()
    old, new = bench.spec, msgspec.structs.replace(bench.spec, version=2, revision="2")
    bench.send(0.0)
    bench.send(1.0)
    bench.send(2.0, version="1")
    side_by_side = {"echo": new, "echo/1": msgspec.structs.replace(old, latest=False)}
    gpu_lets = [
        PlannedGpuLet(sm=0.5, duty_ms=0, occupancy=0, tasks=(whole_task(spec),)) for spec in side_by_side.values()
    ]
    plan = msgspec.structs.replace(EMPTY, gpus=(Gpu(index=0, memory_mib=0, gpu_lets=tuple(gpu_lets)),))
    bench.engine.adopt(plan, lambda _: Route(bench.executor, "gpu0/let9"), side_by_side)
    assert [run[1] for run in bench.executor.runs[1:]] in (["echo", "echo/2@2"], ["echo/2@2", "echo"])
    for _ in range(3):
        await bench.executor.answer()
    assert bench.answers == [[0.0], [2.0], [4.0]]


@scenario
async def test_a_version_that_goes_answers_what_waits_for_it_first():
    bench = Bench()
    bench.send(0.0)
    bench.send(1.0, version="1")
    new = msgspec.structs.replace(bench.spec, version=2, revision="2")
    leaving = asyncio.create_task(bench.engine.leave({"echo": new}))
    await asyncio.sleep(0)
    bench.send(2.0, version="1")
    assert bench.answers[2].reason == "unknown"
    bench.send(3.0)
    assert not leaving.done()
    await bench.executor.answer()
    await leaving
    await bench.executor.answer()
    assert bench.answers[:2] == [[0.0], [2.0]]
