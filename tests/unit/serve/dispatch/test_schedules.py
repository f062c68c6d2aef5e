"""Models that ask others, raise and kill their executors (at work, while they wait, or later), in random order, beside
cancels, deadlines, reloads and new plans: each request has one answer, nothing is left behind, and only what kills is
told so."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from functools import partial

import msgspec
import pytest

from gemlet.serve.dispatch.call import Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import EMPTY, Engine, Route
from gemlet.serve.dispatch.nested import Nested
from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.executor import ExecutorDied, Result
from gemlet.serve.execution.loan import Loan
from gemlet.serve.models.specification import ModelError
from gemlet.serve.plan.model import Gpu, PlannedGpuLet
from gemlet.serve.server.fleet import whole_task
from tests.unit.serve.stand_in import model

SEEDS = range(300)
MANY = 20_000  # steps, in which everything ends many times over
# When a program that kills its executor does: at its end, while it waits for what it has asked, or after its answer.
DEATHS = [["die"], ["wait"], ["later"], ["die", "wait"], ["die", "wait", "later"]]
TURNS = 4  # of the event loop, until what was begun in it has come to all


class Run:
    """A batch at an executor. ``asked``: numbers of what it has asked; None: it has not begun."""

    def __init__(self, executor, parts, rows, nesting, future):
        self.executor, self.rows, self.nesting, self.future = executor, rows, nesting, future
        self.programs = [int(struct.unpack("<f", bytes(part)[:4])[0]) for part in parts]
        self.asked = None

    @property
    def ready(self):
        return self.asked is None or all(number in self.executor.replies for number in self.asked)


class Played:
    """An executor."""

    def __init__(self, key):
        self.key, self.name = key, f"executor {key}"
        self.died = asyncio.Event()
        self.runs, self.replies, self.lent = [], {}, 0
        self.doomed = False  # by what an earlier batch has left behind: it ends one day, at whatever it is then

    def run(self, _gpu_let, _name, inputs, rows, _requests=(), *, nesting=protocol.OUTERMOST):
        future = asyncio.get_running_loop().create_future()
        if self.died.is_set():
            future.set_exception(GpuLetGone("gone"))
        else:
            self.runs.append(Run(self, inputs[0].parts, rows, nesting, future))
        return future

    def reply(self, message):
        self.replies[message.number] = message.error


class World:
    """Models on gpu-lets of some devices. What a request does is a program, by its number, which is its data: whom it
    asks what, and how it ends."""

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        self.now = 0.0
        self.engine = Engine(clock=lambda: self.now)
        self.nested = Nested(self.engine)
        self.deadly, self.deaths_are = chance.choice([0.05, 0.1, 0.2]), chance.choice(DEATHS)
        self.specs = {name: self._spec(name) for name in "abcdefg"[: chance.randrange(2, 8)]}
        self.devices, self.each_its_own = chance.randrange(1, 4), chance.random() < 0.3
        self.executors, self.dead = {}, []
        self.programs, self.kills = {}, {}
        self.calls, self.answers = [], []
        self.deaths = self.killers = 0
        self._numbers = itertools.count(1)
        self.engine.models.replace(self.specs)
        self.adopt()

    def _spec(self, name):
        chance = self.chance
        return model(
            name,
            platform=chance.choice(["triton_python", "triton_python", "python"]),
            slo_ms=chance.choice([1e6, 1000.0]),
            max_batch=chance.choice([1, 1, 2, 4, 8]),
            service_class=chance.choice(["throughput", "latency"]),
        )

    def adopt(self, specs=None):
        chance, names = self.chance, sorted(self.specs)
        plan = [
            [chance.sample(names, chance.randrange(1, min(3, len(names)) + 1)) for _ in range(chance.randrange(1, 4))]
            for _ in range(self.devices)
        ]
        plan[0][0] += [name for name in names if not any(name in placed for gpu in plan for placed in gpu)]
        gpus = tuple(
            Gpu(
                index=index, memory_mib=0,
                gpu_lets=tuple(
                    PlannedGpuLet(
                        sm=0.5, duty_ms=0, occupancy=0, tasks=tuple(whole_task(self.specs[name]) for name in placed)
                    )
                    for placed in gpu
                ),
            )
            for index, gpu in enumerate(plan)
        )  # fmt: skip
        self.engine.adopt(msgspec.structs.replace(EMPTY, gpus=gpus), self._route, specs)

    def _route(self, gpu_let):
        key = (gpu_let.gpu, gpu_let.number if self.each_its_own else 0)
        return Route(self.executors.setdefault(key, Played(key)), f"let{gpu_let.number}")

    def reload(self):
        name = self.chance.choice(sorted(self.specs))
        self.specs[name] = msgspec.structs.replace(self.specs[name], revision=str(next(self._numbers)))
        self.adopt(dict(self.specs))

    def _program(self, depth=0):
        chance, number = self.chance, next(self._numbers)
        asks = []
        if depth < 3 and chance.random() < 0.6:
            asks = [
                (chance.choice(sorted(self.specs)), self._program(depth + 1)) for _ in range(chance.choice([1, 2, 3]))
            ]
        luck = chance.random()
        deadly = chance.choice(self.deaths_are)
        end = deadly if luck < self.deadly else "raise" if luck < self.deadly + 0.1 else "answer"
        self.programs[number] = asks, end
        self.kills[number] = end == deadly or any(self.kills[asked] for _, asked in asks)
        return number

    def send(self):
        chance, place, number = self.chance, len(self.calls), self._program()
        self.killers += self.kills[number]
        name = chance.choice(sorted(self.specs))
        rows = min(chance.choice([1, 1, 2]), self.specs[name].max_batch)

        def answer(told):
            assert self.answers[place] is None, "answered twice"
            assert not call.gone
            self.answers[place] = told

        call = Call(
            name, [Tensor("X", "FP32", (rows, 1), struct.pack("<f", number) * rows)], answer, self.now,
            timeout_ms=chance.choice([0.0, 0.0, 50.0, 500.0]), priority=chance.choice([0, 0, 1, 5]),
            client=chance.choice("xyz"),
        )  # fmt: skip
        self.calls.append((call, number))
        self.answers.append(None)
        self.engine.infer(call)

    def cancel(self):
        waiting = [call for (call, _), told in zip(self.calls, self.answers, strict=True) if told is None]
        if waiting:
            self.engine.cancel(self.chance.choice(waiting))

    @property
    def runs(self):
        return [run for executor in self.executors.values() for run in executor.runs]

    async def step(self):
        """What a batch does next; whether any does anything."""
        acts = [partial(self._begin if run.asked is None else self._end, run) for run in self.runs if run.ready]
        dying = [run.executor for run in self.runs if not run.ready and "wait" in self._ends(run)]
        dying += [executor for executor in self.executors.values() if executor.doomed and not executor.died.is_set()]
        acts += [partial(self._die, executor) for executor in dying]
        if acts:
            await self.chance.choice(acts)()
        return bool(acts)

    def _ends(self, run):
        return {self.programs[number][1] for number in run.programs}

    async def _begin(self, run):
        run.asked = []
        for model_asked, number in [ask for each in run.programs for ask in self.programs[each][0]]:
            if run.nesting.batch and len(run.nesting.chain) < 16:
                run.asked.append(next(self._numbers))
                given = (protocol.ArenaTensor("X", "FP32", (1, 1), -1, 4, struct.pack("<f", number)),)
                timeout_us = self.chance.choice([0, 0, 100_000])
                ask = protocol.Ask(run.asked[-1], model_asked, "", given, timeout_us, *_asker(run.nesting))
                self.nested(run.executor, ask)
        given_up = self.chance.choice(run.asked) if run.asked and self.chance.random() < 0.1 else None
        if given_up is not None and given_up not in run.executor.replies:
            run.executor.replies[given_up] = None
            self.nested(run.executor, protocol.Cancel(given_up))

    async def _end(self, run):
        ends, executor = self._ends(run), run.executor
        executor.doomed |= "later" in ends
        if "die" in ends or ("wait" in ends and not run.asked):
            await self._die(executor)
            return
        executor.runs.remove(run)
        told = next((error for error in map(executor.replies.get, run.asked) if error), None)
        if "raise" in ends or (told and self.chance.random() < 0.5):
            run.future.set_exception(ModelError(told or "raised"))
        else:
            executor.lent += 1
            loan = Loan(lambda: setattr(executor, "lent", executor.lent - 1))
            output = protocol.ArenaTensor("Y", "FP32", (run.rows, 1), 0, 4 * run.rows)
            run.future.set_result(Result(((output, memoryview(bytes(4 * run.rows))),), 1.0, loan))
            asyncio.get_running_loop().call_soon(loan.end)
        await turns()

    async def _die(self, executor):
        self.deaths += 1
        executor.died.set()
        self.chance.shuffle(executor.runs)
        for run in executor.runs:
            run.future.set_exception(ExecutorDied("gone"))
        executor.runs = []
        await turns()
        self.dead.append(executor)

    def revive(self):
        if self.dead:
            executor = self.dead.pop(self.chance.randrange(len(self.dead)))
            again = self.executors[executor.key] = Played(executor.key)
            self.engine.resume(again, executor)

    def later(self, ms):
        self.now += ms
        self.engine.expire()

    async def anything(self):
        luck = self.chance.random()
        if luck < 0.35:
            self.send()
        elif luck < 0.7:
            await self.step()
        elif luck < 0.8:
            self.later(self.chance.choice([1.0, 5.0, 30.0]))
        elif luck < 0.85:
            self.revive()
        elif luck < 0.89:
            self.cancel()
        elif luck < 0.92:
            self.adopt()
        elif luck < 0.94:
            self.reload()
        await turns()

    async def to_the_end(self):
        for _ in range(MANY):
            if await self.step():
                if self.chance.random() < 0.1:
                    self.later(5.0)
            elif self.dead:
                self.revive()
            elif not self.engine.in_flight and not self.runs:
                return
            else:  # no deadline is to end what would wait for ever
                raise AssertionError(f"{self.engine.in_flight} requests wait for nothing")
            await turns()
        raise AssertionError(f"no end after {self.deaths} deaths")

    def check(self):
        for (call, number), told in zip(self.calls, self.answers, strict=True):
            assert told is not None or call.gone
            if isinstance(told, Refusal) and "the executor died" in told.message:
                assert self.kills[number], told.message
        engine = self.engine
        assert engine.waits.total == 0
        assert engine.room.total == 0
        assert not any(case.suspected for case in engine._quarantine._cases.values())
        assert not any(self.nested._asked.values())
        assert not any(executor.lent for executor in self.executors.values())
        assert self.deaths <= 12 * self.killers


def _asker(nesting):
    return nesting.batch, nesting.chain


async def turns():
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_has_one_answer_and_nothing_is_left(seed):
    async def run():
        world = World(seed)
        for _ in range(world.chance.randrange(5, 60)):
            await world.anything()
        await world.to_the_end()
        world.check()

    asyncio.run(run())
