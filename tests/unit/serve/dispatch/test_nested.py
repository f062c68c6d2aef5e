"""Models that ask others, on gpu-lets that they share: nobody waits for itself, in whatever order they ask."""

from __future__ import annotations

import asyncio
import gc
import itertools
import struct
from unittest import mock

import msgspec

from gemlet.serve.dispatch import nested
from gemlet.serve.dispatch.call import Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import EMPTY, Engine, Route
from gemlet.serve.dispatch.gpu_lets import GpuLetState
from gemlet.serve.dispatch.nested import Nested
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution import protocol
from gemlet.serve.execution.executor import ExecutorDied
from gemlet.serve.plan.model import Gpu, PlannedGpuLet
from gemlet.serve.server.fleet import whole_task
from tests.unit.serve.dispatch.test_engine import Executor, scenario
from tests.unit.serve.stand_in import model

DATA = struct.pack("<f", 1.0)


class Asking(Executor):
    """As an executor of which models ask others: the test says when, and when a batch ends."""

    def __init__(self):
        super().__init__()
        self.name = "gpu0"
        self.replies = []

    def reply(self, message):
        self.replies.append(message)


class Bench:
    """``gpu_lets``: the models of each, by their letters."""

    def __init__(self, *gpu_lets, slo_ms=1e6):
        self.now = 0.0
        self.engine = Engine(clock=lambda: self.now)
        for name in sorted(set("".join(gpu_lets))):
            spec = msgspec.structs.replace(model(name, platform="triton_python", slo_ms=slo_ms, max_batch=1))
            self.engine.models[name] = ServedModel(spec)
        self.executor = Asking()
        self.nested = Nested(self.engine)
        self.answers = {}
        self._numbers = itertools.count(1)
        self.adopt(*gpu_lets)

    def adopt(self, *gpu_lets, specs=None):
        planned = tuple(
            PlannedGpuLet(
                sm=0.5, duty_ms=0, occupancy=0,
                tasks=tuple(whole_task(self.engine.models[name].spec) for name in models),
            )
            for models in gpu_lets
        )  # fmt: skip
        plan = msgspec.structs.replace(EMPTY, gpus=(Gpu(index=0, memory_mib=0, gpu_lets=planned),))
        self.engine.adopt(plan, lambda gpu_let: Route(self.executor, f"let{gpu_let.number}"), specs)

    def send(self, name):
        place = len(self.answers)
        self.answers[place] = None
        given = [Tensor("X", "FP32", (1, 1), DATA)]
        self.engine.infer(Call(name, given, lambda told: self.answers.update({place: told}), self.now))

    def ask(self, asker, name):
        """The batch of a model that runs sends a request to another one; its number."""
        nesting = next(each for each in reversed(self.executor.nestings) if each.chain[-1] == asker)
        tensor = protocol.ArenaTensor("X", "FP32", (1, 1), -1, len(DATA), DATA)
        number = next(self._numbers)
        message = protocol.Ask(number, name, "", (tensor,), 0, nesting.batch, nesting.chain)
        self.nested(self.executor, message)
        return number

    def cancel(self, number):
        self.nested(self.executor, protocol.Cancel(number))

    async def end(self, name):
        """The batch of a model that runs comes back."""
        at = next(at for at, run in enumerate(self.executor.runs) if run[1] == name)
        self.executor.runs.insert(0, self.executor.runs.pop(at))
        await self.executor.answer()

    async def end_all(self):
        """All batches that run come back, those first that began last."""
        while self.running:
            await self.end(self.running[-1])

    @property
    def running(self):
        return "".join(run[1] for run in self.executor.runs)

    @property
    def replied(self):
        return {reply.number: reply.error for reply in self.executor.replies}

    def beside(self, name):
        return [each for each in self.executor.nestings if each.chain[-1] == name][-1].beside


@scenario
async def test_two_pipelines_on_shared_gpu_lets_do_not_wait_for_each_other():
    """No model asks itself, and yet each waits for the gpu-let that the other holds."""
    bench = Bench("ac", "bd")
    bench.send("a")
    bench.send("b")
    asked = bench.ask("a", "d")
    assert bench.running == "ab"  # b may end yet
    other = bench.ask("b", "c")
    assert bench.running[2:] in {"c", "d"}
    assert bench.beside(bench.running[-1])
    while len(bench.running) > 2:
        await bench.end(bench.running[-1])
    first = bench.replied
    assert set(first.values()) == {None}
    if other in first:
        await bench.end("b")  # its gpu-let is free for what a waits for
        await bench.end("d")
    else:
        await bench.end("a")
        await bench.end("c")
    assert bench.replied == {asked: None, other: None}
    await bench.end(bench.running)
    assert all(not isinstance(answer, Refusal) for answer in bench.answers.values())
    assert bench.engine.in_flight == 0
    assert bench.engine.waits.total == 0


@scenario
async def test_what_can_wait_for_a_gpu_let_waits_for_it():
    bench = Bench("a", "b", "b")
    for name in "abb":
        bench.send(name)
    bench.ask("a", "b")
    assert bench.running == "abb"
    bench.ask("b", "a")  # of the second one; the first ends one day
    assert bench.running == "abb"
    await bench.end("b")
    assert bench.running == "abb"
    assert not any(nesting.beside for nesting in bench.executor.nestings)
    bench.ask("b", "a")  # and now there is none that would
    assert bench.running == "abba"
    assert bench.beside("a")


@scenario
async def test_three_models_in_a_circle_with_a_new_plan_meanwhile():
    bench = Bench("a", "b", "c")
    for name in "abc":
        bench.send(name)
    bench.ask("a", "b")
    bench.ask("b", "c")
    bench.adopt("abc")  # all that waits has a gpu-let now
    assert bench.running in {"abcb", "abcc"}
    await bench.end_all()
    assert bench.replied == {1: None, 2: None}
    assert bench.engine.in_flight == 0
    await bench.engine.settled()


@scenario
async def test_models_in_a_circle_do_not_wait_for_the_batch_of_a_gpu_let_that_stays_with_a_new_plan():
    bench = Bench("a", "b")
    bench.send("a")
    bench.adopt("a", "b")  # the thread of the first gpu-let is still at that batch
    bench.ask("a", "b")
    bench.ask("b", "a")
    assert bench.running == "aba"
    assert bench.beside("a")
    await bench.end_all()
    assert bench.replied == {1: None, 2: None}
    assert bench.engine.in_flight == 0
    await bench.engine.settled()


@scenario
async def test_a_model_of_a_circle_that_is_itself_replaced_does_not_wait_for_its_old_batch():
    for gpu_lets in (("a", "b"), ("ac", "bd")):
        bench = Bench(*gpu_lets)
        bench.send("a")
        specs = {name: served.spec for name, served in bench.engine.models.items()}
        bench.adopt(*gpu_lets, specs=specs | {"a": msgspec.structs.replace(specs["a"], revision="2")})
        ended = asyncio.ensure_future(bench.engine.settled())
        bench.ask("a", "b")
        bench.ask("b", "a")
        assert [run[1] for run in bench.executor.runs] == ["a", "b", "a/1@2"]
        assert bench.beside("a")
        for name in ("a/1@2", "b"):
            await bench.end(name)
            assert not ended.done()  # the old files are in use, and are unloaded after that
        await bench.end("a")
        await ended
        assert bench.replied == {1: None, 2: None}
        assert bench.engine.in_flight == 0


@scenario
async def test_the_batch_of_a_version_whose_name_an_older_one_takes_over_ends_before_it_is_settled():
    bench = Bench("a")
    served = bench.engine.models["a"]
    older = msgspec.structs.replace(served.spec, version=1)
    served.spec = msgspec.structs.replace(served.spec, version=2, revision="2")
    bench.engine.models["a/1"] = ServedModel(older)
    bench.send("a")
    bench.adopt("a", specs={"a": older})
    ended = asyncio.ensure_future(bench.engine.settled())
    await asyncio.sleep(0)
    assert not ended.done()
    await bench.end("a/2@2")
    await ended
    assert bench.answers[0].spec.version == 2


@scenario
async def test_a_batch_that_waits_does_not_count_as_one_that_hangs():
    bench = Bench("a", "b")
    bench.send("a")
    bench.now = 100.0
    number = bench.ask("a", "b")
    bench.now = 1000.0
    assert bench.engine.stuck(950) == set()
    assert bench.engine.stuck(850) == {bench.executor}  # b
    await bench.end("b")
    assert bench.replied == {number: None}
    assert bench.engine.stuck(850) == set()
    bench.now = 2000.0
    assert bench.engine.stuck(950) == {bench.executor}  # a, which has its answer


@scenario
async def test_a_batch_that_asks_again_and_again_hangs_at_last():
    bench = Bench("a", "b")
    bench.send("a")
    for _ in range(10):
        assert bench.engine.stuck(95) == set()
        bench.now += 10.0  # of its own
        asked = bench.ask("a", "nobody") if bench.now < 50.0 else bench.ask("a", "b")
        if bench.now >= 50.0:
            bench.now += 1000.0
            await bench.end("b")
        assert asked in bench.replied
    assert bench.engine.stuck(95) == {bench.executor}
    bench.ask("a", "b")
    assert bench.engine.stuck(95) == {bench.executor}  # whatever it waits for now
    await bench.end("b")
    await bench.end("a")
    assert bench.engine.stuck(95) == set()


@scenario
async def test_what_a_batch_does_not_wait_for_any_more_is_not_run_and_it_counts_as_at_work():
    bench = Bench("a", "b")
    bench.send("b")
    bench.send("a")
    bench.now = 10.0
    number = bench.ask("a", "b")
    bench.now = 100.0
    bench.cancel(number)
    bench.cancel(number)  # as where its reply was on its way
    bench.now = 150.0
    assert bench.engine.stuck(61) == {bench.executor}  # b
    await bench.end("b")
    assert bench.engine.stuck(61) == set()
    assert bench.engine.stuck(59) == {bench.executor}  # a
    assert bench.running == "a"
    await bench.end("a")
    assert bench.replied == {}
    assert bench.engine.in_flight == 0


@scenario
async def test_the_answer_to_what_was_cancelled_while_it_ran_goes_nowhere():
    bench = Bench("a", "b")
    bench.send("a")
    number = bench.ask("a", "b")
    bench.cancel(number)
    assert bench.running == "ab"
    await bench.end("b")
    await bench.end("a")
    assert bench.replied == {}
    assert bench.engine.in_flight == 0


@scenario
async def test_nothing_waits_for_the_collector_that_models_sent_each_other():
    bench = Bench("a", "b")
    bench.send("a")
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        bench.ask("a", "b")
        await bench.end("b")
        await bench.end("a")
        gc.collect()
        assert not any(isinstance(each, Call) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@scenario
async def test_a_suspect_runs_where_all_others_wait():
    bench = Bench("a", "b", "c")
    bench.engine._quarantine.died("b", 0, 9, 0.0, sole=True)  # on probation: nothing else is at work on its device
    for name in "ac":
        bench.send(name)
    asked = [bench.ask("a", "b")]
    assert bench.running == "ac"
    asked.append(bench.ask("c", "b"))
    assert bench.running == "acb"
    await bench.end_all()
    assert bench.replied[asked[0]] is None
    assert not any(isinstance(answer, Refusal) for answer in bench.answers.values())


def asked_by(executor, number):
    tensor = protocol.ArenaTensor("X", "FP32", (1, 1), -1, len(DATA), DATA)
    return executor, protocol.Ask(number, "a", "", (tensor,), 0, 0, ("b",))  # of no batch


def other():
    executor = Asking()
    executor.name = "gpu1"
    return executor


@scenario
async def test_what_a_model_asks_while_its_executor_starts_again_does_not_wait_for_that():
    bench = Bench("a", "b")
    before, again, serving = bench.executor, Asking(), other()
    bench.engine._routes[GpuLetState(1, 0, 1.0)] = Route(serving, "gpu1/let0")
    before.died.set()
    bench.engine.suspend(before)
    bench.nested(*asked_by(again, 1))  # by what b has in `initialize`
    bench.nested(*asked_by(serving, 2))
    (told,) = again.replies
    assert "the executor of a is being started again" in told.error
    bench.engine.resume(again, before)
    assert again.runs  # that one waited
    bench.nested(*asked_by(again, 3))  # of a thread of b's own
    assert [reply.number for reply in again.replies] == [1]
    assert not bench.engine._of_loads


@scenario
async def test_executors_that_start_again_do_not_wait_for_each_other():
    bench = Bench("a", "b")
    before, elsewhere = bench.executor, other()
    bench.nested(*asked_by(elsewhere, 1))  # while it loads its models
    bench.nested(*asked_by(elsewhere, 2))
    assert bench.running == "a"
    before.died.set()
    bench.engine.suspend(before)
    await before.fail(ExecutorDied("gone"))  # with the first one; it is not run again
    while len(elsewhere.replies) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert {"the executor of a is being started again" in reply.error for reply in elsewhere.replies} == {True}
    assert bench.engine.in_flight == 0
    assert not bench.engine._of_loads


@scenario
async def test_an_answer_that_no_message_can_have_is_an_error():
    bench = Bench("a", "b")
    bench.send("a")
    number = bench.ask("a", "b")
    with mock.patch.object(protocol, "MAX_NESTED", 3):
        await bench.end("b")
    assert "the answer of b has 4 bytes: expected at most 3" in bench.replied[number]
    assert bench.engine.waits.total == 0


@scenario
async def test_a_large_answer_is_copied_beside_the_event_loop():
    bench = Bench("a", "b")
    bench.executor.reply_large = mock.Mock()
    bench.send("a")
    number = bench.ask("a", "b")
    with mock.patch.object(nested, "COPY_BYTES", 3):
        await bench.end("b")
    ((told, (output,), (data,), kept),) = [call.args for call in bench.executor.reply_large.call_args_list]
    assert (told, output.name, output.shape, output.nbytes, output.inline) == (number, "Y", (1, 1), 4, b"")
    assert bytes(data) == struct.pack("<f", 2.0)
    assert bench.replied == {}
    kept.end()


@scenario
async def test_text_that_a_model_sends_is_not_looked_at_on_its_way():
    """It may be millions of elements, and the event loop is everybody's."""
    bench = Bench("a", "t")
    text = model("t", platform="triton_python", slo_ms=1e6, max_batch=1, inputs=(("X", "BYTES", (-1,)),))
    bench.engine.models["t"] = ServedModel(text)
    bench.send("a")
    data = b"\xff" * 8  # no elements
    tensor = protocol.ArenaTensor("X", "BYTES", (1, 2), -1, len(data), data)
    (nesting,) = bench.executor.nestings
    bench.nested(bench.executor, protocol.Ask(1, "t", "", (tensor,), 0, nesting.batch, nesting.chain))
    assert bench.running == "at"
    await bench.end_all()
