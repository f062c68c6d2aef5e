"""What suspects of which executors died make others wait for: no longer than until they have run, and for nothing that
never comes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import struct
import weakref

import msgspec

from gemlet.serve.dispatch.blame import guilty, marks_of
from gemlet.serve.dispatch.call import Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import EMPTY, Engine, Route
from gemlet.serve.dispatch.gpu_lets import Assignment, Batch, GpuLetState
from gemlet.serve.dispatch.nested import Nested
from gemlet.serve.dispatch.quarantine import Quarantine
from gemlet.serve.dispatch.queue import Line
from gemlet.serve.dispatch.request import Request
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.dispatch.waits import Waits
from gemlet.serve.execution import protocol
from gemlet.serve.execution.executor import ExecutorDied
from gemlet.serve.plan.model import Gpu, PlannedGpuLet
from gemlet.serve.server.fleet import whole_task
from tests.unit.serve.dispatch.test_engine import scenario
from tests.unit.serve.dispatch.test_nested import DATA, Asking
from tests.unit.serve.stand_in import model

POISON = struct.pack("<f", -1.0)


class Devices:
    """Gpu-lets of several devices, by the letters of their models; each device has an executor."""

    def __init__(self, *devices):
        self.now = 0.0
        self.engine = Engine(clock=lambda: self.now)
        self.nested = Nested(self.engine)
        self.executors = [Asking() for _ in devices]
        self.answers = {}
        self._numbers = itertools.count(1)
        for name in sorted(set("".join(itertools.chain(*devices)))):
            spec = model(name, platform="triton_python", slo_ms=1e6, max_batch=1)
            self.engine.models[name] = ServedModel(spec)
        gpus = tuple(
            Gpu(
                index=index, memory_mib=0,
                gpu_lets=tuple(
                    PlannedGpuLet(
                        sm=0.5, duty_ms=0, occupancy=0,
                        tasks=tuple(whole_task(self.engine.models[name].spec) for name in names),
                    )
                    for names in gpu_lets
                ),
            )
            for index, gpu_lets in enumerate(devices)
        )  # fmt: skip
        plan = msgspec.structs.replace(EMPTY, gpus=gpus)
        self.engine.adopt(plan, lambda gpu_let: Route(self.executors[gpu_let.gpu], f"let{gpu_let.number}"))

    def suspect(self, name):
        """It runs by itself from now on: of a request that never ends here."""
        self.engine._quarantine.died(name, 0, 2, 0.0, sole=False)

    def send(self, name, *, data=DATA, **more):
        place = len(self.answers)
        self.answers[place] = None
        given = [Tensor("X", "FP32", (1, 1), data)]
        call = Call(name, given, lambda told: self.answers.update({place: told}), self.now, **more)
        self.engine.infer(call)
        return call

    def ask(self, device, asker, name):
        """The last batch of a model that runs there sends a request to another one."""
        executor = self.executors[device]
        nesting = [each for each in executor.nestings if each.chain[-1] == asker][-1]
        tensor = protocol.ArenaTensor("X", "FP32", (1, 1), -1, len(DATA), DATA)
        message = protocol.Ask(next(self._numbers), name, "", (tensor,), 0, nesting.batch, nesting.chain)
        self.nested(executor, message)

    def running(self, device=0):
        return "".join(run[1] for run in self.executors[device].runs)

    async def end(self, name, device=0):
        executor = self.executors[device]
        at = next(at for at, run in enumerate(executor.runs) if run[1] == name)
        executor.runs.insert(0, executor.runs.pop(at))
        await executor.answer()
        await asyncio.sleep(0)

    def data(self, device=0):
        """Of the requests that run."""
        return [bytes(x.parts[0]) for _, _, (x,), *_ in self.executors[device].runs]

    def kill(self, device=0):
        dead = self.executors[device]
        dead.died.set()
        for *_, future in dead.runs:
            future.set_exception(ExecutorDied("gone"))
        return dead

    def revive(self, dead):
        device = self.executors.index(dead)
        self.executors[device] = Asking()
        self.engine.resume(self.executors[device], dead)

    async def die(self, device=0):
        """The executor dies, and is back at once."""
        dead = self.kill(device)
        await asyncio.sleep(0)
        self.revive(dead)
        await asyncio.sleep(0)
        return weakref.ref(dead)


@scenario
async def test_others_run_when_a_suspect_that_waits_is_cancelled():
    bench = Devices(["a", "b", "c"])
    bench.suspect("a")
    bench.send("b")
    suspect = bench.send("a")
    bench.send("c")
    assert bench.running() == "b"
    bench.engine.cancel(suspect)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.running() == "bc"


@scenario
async def test_others_run_when_a_suspect_that_waits_is_late():
    bench = Devices(["a", "b", "c"])
    bench.suspect("a")
    bench.send("b")
    bench.send("a", timeout_ms=10.0)
    bench.send("c")
    bench.now += 100.0
    bench.engine.expire()
    await asyncio.sleep(0)
    assert bench.running() == "bc"


@scenario
async def test_others_do_not_wait_for_a_suspect_whose_executor_starts_again():
    bench = Devices(["a", "b"])
    bench.suspect("a")
    bench.engine._dispatcher.gpu_lets[0].suspended = True
    bench.send("a")
    bench.send("b")
    assert bench.running() == "b"


@scenario
async def test_a_suspect_goes_before_what_came_later_whatever_its_priority():
    """Its model runs alone, and others wait for it, until it has run."""
    bench = Devices(["a"])
    bench.send("a", priority=9, data=POISON)
    dead = bench.kill()
    await asyncio.sleep(0)
    bench.send("a", priority=1)
    bench.revive(dead)
    assert bench.data() == [POISON]


@scenario
async def test_no_end_of_requests_from_another_device_keeps_a_suspect_from_its_turn():
    bench = Devices(["x", "q", "z"], ["p", "p"])
    bench.suspect("x")
    bench.send("p")
    bench.ask(1, "p", "q")
    bench.send("x")
    bench.send("z")
    bench.send("p")
    bench.ask(1, "p", "q")
    assert bench.running() == "q"
    await bench.end("q")
    assert bench.running() == "x"
    await bench.end("x")
    assert sorted(bench.running()) == ["q", "z"]


@scenario
async def test_what_a_suspect_waits_for_on_other_devices_does_not_wait_for_it():
    """x waits for r, r for p, and p for q, which is on the device of x."""
    bench = Devices(["x", "q", "r"], ["p"])
    bench.suspect("x")
    bench.send("r")
    bench.ask(0, "r", "p")
    bench.send("x")
    assert bench.running() == "r"
    bench.ask(1, "p", "q")
    assert bench.running() == "rq"


@scenario
async def test_a_request_that_kills_beside_a_suspect_that_waits_is_blamed():
    """Else executors would die of it without end."""
    bench = Devices(["b", "a", "a"])
    bench.suspect("b")
    bench.send("b")
    bench.send("a", data=POISON)
    deaths, asking = 0, set()
    while bench.running():
        executor = bench.executors[0]
        waiting = [nesting for nesting in executor.nestings if nesting.chain == ("b",) and nesting.batch not in asking]
        if "b" in bench.running() and waiting:
            asking.add(waiting[-1].batch)
            bench.ask(0, "b", "a")
        elif POISON in bench.data():
            deaths += 1
            assert deaths < 10
            await bench.die()
        else:
            await bench.end("a" if "a" in bench.running() else "b")
    assert bench.answers[1].reason == "failed"
    assert not isinstance(bench.answers[0], Refusal)


@scenario
async def test_nothing_is_kept_of_a_dead_executor_whose_models_waited_for_others():
    bench = Devices(["a"], ["b"])
    bench.send("b")
    bench.send("a")
    bench.ask(0, "a", "b")  # waits
    dead = await bench.die()
    gc.collect()
    assert dead() is None
    assert sum(len(asked) for asked in bench.nested._asked.values()) == 0


@scenario
async def test_a_request_is_not_condemned_for_a_model_that_dies_while_it_waits():
    """Which may be there, too, when the request runs by itself: both need the same model."""
    bench = Devices(["a", "b"])
    bench.send("b")
    bench.send("a")
    for _ in range(12):
        running = bench.running()
        if "a" in running:
            bench.ask(0, "a", "b")
            await bench.die()
        elif running:
            await bench.end("b")
    assert bench.answers[1].reason == "failed"
    assert not isinstance(bench.answers[0], Refusal)


def _batch(name, number, *askers):
    def request(asker):
        call = Call(name, [], lambda _: None, 0.0, parent=asker.number if asker else 0)
        call.marks = marks_of(asker) if asker else frozenset()
        return Request(name, 0.0, 1e6, call)

    return Batch(Assignment(GpuLetState(0, 0, 1.0), name, 1, 0.0, 1.0), [request(each) for each in askers], 0.0, number)


def _mark_of(batch):
    assert marks_of(batch)
    return batch.requests[0].payload.mark


def test_what_was_asked_for_a_request_is_of_that_and_of_those_that_it_was_asked_for():
    outer = _batch("a", 1, None)
    inner = _batch("b", 2, outer)
    assert marks_of(inner) == {_mark_of(outer), _mark_of(inner)}
    assert marks_of(_batch("b", 3, outer, inner)) == {_mark_of(outer)}
    assert not marks_of(_batch("b", 4, outer, None))


def test_all_that_a_dead_executor_had_is_guilty_and_who_asked_for_it():
    quarantine, several = Quarantine(), _batch("a", 0, None, None)
    assert guilty([several], Waits(), quarantine) == [several]
    asker = _batch("b", 1, None)
    asked = _batch("a", 2, asker)
    quarantine.unclear("a")
    assert guilty([asker, asked], Waits(), quarantine) == [asked, asker]


def test_whose_a_batch_is_is_found_soon_also_in_long_chains_of_large_batches():
    chain = [_batch("m", 1, None)]
    for depth in range(2, 17):
        chain.append(_batch("m", depth, *[chain[-1]] * 32))
    assert marks_of(chain[-1]) >= {_mark_of(chain[0])}


def test_a_model_of_which_several_were_asked_for_runs_alone_until_it_answers():
    quarantine = Quarantine()
    quarantine.unclear("a")
    assert quarantine.alone == {"a"}
    assert not quarantine.by_itself
    quarantine.ended("a", 1, ran=False)
    assert quarantine.alone == {"a"}
    quarantine.ended("a", 2, ran=True)
    assert not quarantine.alone


def test_what_models_asked_for_is_found_among_any_number_of_others():
    line = Line()
    asked = [Request("a", 0.0, due, asked=True) for due in (5.0, 3.0, 4.0)]
    for request in [*asked, *(Request("a", 0.0, float(due)) for due in range(10))]:
        line.add(request)
    assert line.asked == [asked[1], asked[2], asked[0]]
    line.remove(lambda request: request is asked[2])
    assert line.asked == [asked[1], asked[0]]
    line.late(4.5)
    assert line.asked == [asked[0]]
    line.take(line.rows)
    assert line.asked == []
