"""Models of which executors die: who is blamed, and for how long."""

from __future__ import annotations

import asyncio

import msgspec

from gemlet.serve.dispatch.engine import EMPTY, Route
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution.executor import ExecutorDied
from gemlet.serve.plan.model import Gpu, PlannedGpuLet
from gemlet.serve.server.fleet import whole_task
from tests.unit.serve.dispatch.test_engine import Bench, Executor, scenario
from tests.unit.serve.stand_in import model


class Pair(Bench):
    """Models a and b, each with a gpu-let of its own in one executor."""

    def __init__(self):
        super().__init__()
        self.engine.models.clear()
        for name in "ab":
            self.engine.models[name] = ServedModel(model(name, platform="python", slo_ms=1e6))
        self.fresh()

    def fresh(self):
        """Another executor, in the place of the one before."""
        before, self.executors = self.executors[0], [Executor()]
        if before.died.is_set():
            self.engine.resume(self.executor, before)
            return
        gpu_lets = tuple(
            PlannedGpuLet(sm=0.5, duty_ms=0, occupancy=0, tasks=(whole_task(self.engine.models[name].spec),))
            for name in "ab"
        )
        plan = msgspec.structs.replace(EMPTY, gpus=(Gpu(index=0, memory_mib=0, gpu_lets=gpu_lets),))
        self.engine.adopt(plan, lambda gpu_let: Route(self.executor, f"gpu0/let{gpu_let.number}"))

    def ask(self, name, value):
        self.spec = self.engine.models[name].spec
        return self.send(value)

    async def die(self):
        self.executor.died.set()
        for *_, future in self.executor.runs:
            future.set_exception(ExecutorDied("gone"))
        await asyncio.sleep(0)
        self.fresh()

    @property
    def running(self):
        return [run[1] for run in self.executor.runs]


@scenario
async def test_of_two_models_that_ran_when_an_executor_died_only_the_one_it_dies_of_again_is_blamed():
    bench = Pair()
    bench.ask("a", 1.0)
    bench.ask("b", 2.0)
    await bench.die()
    assert bench.running == ["a"]  # suspects never run together
    await bench.executor.answer()
    assert bench.running == ["b"]
    await bench.die()  # of what a has left behind, for all that anybody knows
    assert bench.running == ["b"]
    await bench.die()
    assert bench.answers[0] == [2.0]
    assert bench.answers[1].reason == "failed"
    assert bench.engine.serves("a")


@scenario
async def test_a_neighbour_loses_no_try_to_a_suspect():
    bench = Pair()
    for _ in range(3):
        bench.ask("b", 2.0)
        await bench.die()
        bench.ask("a", 1.0)
        assert bench.running == ["b", "a"]
        await bench.die()
        assert bench.running == ["b"]  # by itself: it dies of nothing else now
        await bench.die()
        await bench.executor.answer()
        bench.ask("b", 1.0)
        await bench.executor.answer()
        bench.now += 1e7  # what was long ago is forgiven
    told = [getattr(each, "reason", each) for each in bench.answers]
    assert told == ["failed", [2.0], [2.0]] * 3


@scenario
async def test_a_suspect_that_is_innocent_is_not_condemned_for_another():
    bench = Pair()
    bench.ask("a", 1.0)
    bench.ask("b", 2.0)
    await bench.die()
    assert bench.running == ["a"]
    await bench.executor.answer()
    await bench.die()
    await bench.die()
    assert bench.answers[0] == [2.0]
    assert bench.answers[1].reason == "failed"
    bench.ask("b", 3.0)
    bench.ask("a", 4.0)
    assert bench.running == ["b"]  # on probation
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers[2:] == [[6.0], [8.0]]


@scenario
async def test_no_request_is_condemned_for_what_an_earlier_one_has_left_behind():
    """Which ends the executor some time after its answer, when nothing but this request runs."""
    bench = Pair()
    bench.ask("b", 2.0)
    await bench.die()
    bench.ask("a", 1.0)
    bench.executor.runs.reverse()
    await bench.executor.answer()
    assert bench.running == ["b"]
    await bench.die()
    assert bench.running == ["b"]
    await bench.executor.answer()
    assert bench.answers == [[4.0], [2.0]]


@scenario
async def test_a_suspect_that_was_not_the_first_of_its_executor_goes_first_on_the_next():
    bench = Pair()
    bench.ask("b", 2.0)
    await bench.die()
    bench.ask("a", 1.0)
    assert bench.running == ["b", "a"]
    await bench.die()
    bench.ask("a", 3.0)
    assert bench.running == ["b"]
    while bench.running:
        await bench.executor.answer()
        await asyncio.sleep(0)
    assert sorted(bench.answers) == [[2.0], [4.0], [6.0]]


@scenario
async def test_a_model_that_goes_on_killing_executors_rests_longer_each_time():
    bench = Pair()
    rests = []
    for _ in range(4):
        bench.ask("b", 2.0)
        while bench.running:
            await bench.die()
        bench.ask("b", 3.0)
        if bench.running:
            while bench.running:
                await bench.die()
            bench.ask("b", 3.0)
        refused = bench.answers[-1]
        assert refused.reason == "unavailable"
        assert "rests for" in bench.engine.why_not("b")
        rests.append(refused.retry_s)
        bench.now += 1000.0 * refused.retry_s
        assert bench.engine.serves("b")
    assert rests == [1, 2, 4, 8]
    bench.ask("b", 4.0)
    await bench.executor.answer()
    assert bench.answers[-1] == [8.0]
    assert not bench.engine._quarantine.alone
