"""Models that ask others of which executors die: who sent what kills is told so, and nobody else is without answers."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from gemlet.serve.dispatch.call import Call, Refusal, Tensor
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution import protocol
from gemlet.serve.execution.executor import ExecutorDied
from gemlet.serve.models.specification import ModelError
from tests.unit.serve.dispatch.test_engine import scenario
from tests.unit.serve.dispatch.test_nested import Asking, Bench
from tests.unit.serve.stand_in import model

GOOD, POISON = struct.pack("<f", 1.0), struct.pack("<f", -1.0)
NEXT = {"a": "c", "b": "c", "c": None, "d": "a"}  # whom a model asks; c dies of what is poison


class Dying(Bench):
    """The models of NEXT, each on a gpu-let of its own, of one executor. They send on what they get."""

    def __init__(self):
        super().__init__(*NEXT)
        self.engine.models["c"] = ServedModel(model("c", platform="python", slo_ms=1e6, max_batch=4))
        self.adopt(*NEXT)
        self.asked = {}  # by the future of the batch that waits for the answer
        self.deaths = 0

    def send(self, name, data=GOOD):
        place = len(self.answers)
        self.answers[place] = None

        def answer(told):
            assert self.answers[place] is None, "answered twice"
            self.answers[place] = told

        self.engine.infer(Call(name, [Tensor("X", "FP32", (1, 1), data)], answer, self.now))
        return place

    async def die(self):
        self.deaths += 1
        dead, self.executor = self.executor, Asking()
        dead.died.set()
        for *_, future in dead.runs:
            future.set_exception(ExecutorDied("gone"))
        await asyncio.sleep(0)
        self.asked.clear()
        self.engine.resume(self.executor, dead)

    async def step(self, at):
        """What the batch that runs there does next: it asks, ends, or dies; whether it does anything."""
        _, name, (x,), _, future = self.executor.runs[at]
        if NEXT[name] is None:
            if POISON in [bytes(part) for part in x.parts]:
                await self.die()
            else:
                await self.end_at(at)
        elif future not in self.asked:
            self.asked[future] = number = next(self._numbers)
            nesting = self.executor.nestings[at]
            data = b"".join(bytes(part) for part in x.parts)
            given = protocol.ArenaTensor("X", "FP32", (1, 1), -1, len(data), data)
            self.nested(self.executor, protocol.Ask(number, NEXT[name], "", (given,), 0, nesting.batch, nesting.chain))
        elif self.asked[future] in self.replied:
            await self.end_at(at)
        else:
            return False
        return True

    async def end_at(self, at):
        error = self.replied.get(self.asked.get(self.executor.runs[at][-1]))
        self.executor.nestings.pop(at)
        self.executor.runs.insert(0, self.executor.runs.pop(at))
        await (self.executor.fail(ModelError(error)) if error else self.executor.answer())

    async def end_all(self, chance=None):
        while self.executor.runs:
            order = list(range(len(self.executor.runs)))
            if chance is not None:
                chance.shuffle(order)
            for at in order:
                if await self.step(at):
                    break
            else:
                raise AssertionError(f"{self.running} wait for ever")

    def is_good(self, place):
        return self.answers[place] is not None and not isinstance(self.answers[place], Refusal)


@scenario
async def test_one_request_that_kills_what_it_asks_does_not_keep_others_from_it():
    bench = Dying()
    bad = bench.send("d", POISON)
    await bench.end_all()
    assert bench.answers[bad].reason == "failed"
    assert "died 2 times" in bench.answers[bad].message
    assert bench.deaths == 2
    good = [bench.send(name) for name in "dabc"]
    await bench.end_all()
    assert all(map(bench.is_good, good))
    assert bench.deaths == 2
    assert not bench.engine._quarantine.alone


@scenario
async def test_a_model_on_probation_is_tried_by_those_that_ask_it():
    bench = Dying()
    bench.engine._quarantine.died("c", 0, 9, 0.0, sole=True)
    good = [bench.send("a"), bench.send("d")]
    await bench.end_all()
    assert all(map(bench.is_good, good))
    assert not bench.engine._quarantine.alone


@scenario
async def test_what_a_dead_executor_has_asked_is_not_run_again():
    bench = Dying()
    bench.send("a")
    await bench.step(0)
    bench.send("c")  # waits behind what a has asked
    assert bench.running == "ac"
    await bench.die()
    await bench.end_all()
    assert all(map(bench.is_good, bench.answers))
    assert bench.engine.in_flight == 0
    assert bench.engine.models["c"].statistics.success.count == 2


@pytest.mark.parametrize("seed", range(60))
def test_all_are_answered_and_only_what_kills_is_refused(seed):
    @scenario
    async def run():
        chance, bench = random.Random(seed), Dying()
        good, bad = [], []
        for _ in range(chance.randrange(1, 12)):
            if chance.random() < 0.15:
                bad.append(bench.send(chance.choice("abcd"), POISON))
            else:
                good.append(bench.send(chance.choice("abcd")))
            for _ in range(chance.randrange(4)):
                if bench.executor.runs:
                    await bench.step(chance.randrange(len(bench.executor.runs)))
        await bench.end_all(chance)
        assert None not in bench.answers.values()
        assert not any(map(bench.is_good, bad))
        if len(bad) < 2:  # of the second one a model rests
            assert all(map(bench.is_good, good)), [bench.answers[each] for each in good if not bench.is_good(each)]
        assert bench.deaths <= 6 * len(bad)
        assert bench.engine.in_flight == 0
        assert bench.engine.waits.total == 0
        assert bench.engine.room.total == 0

    run()
