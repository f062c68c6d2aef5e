"""Plans brought into force on devices that are none: names, order, failures."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.serve.dispatch.engine import Engine
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.models.specification import ModelError
from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet
from gemlet.serve.server.fleet import Fleet, whole_task
from tests.unit.serve.stand_in import model


class Executor:
    def __init__(self):
        self.died = asyncio.Event()


class Device:
    def __init__(self, index):
        self.index = index
        self.note = ""
        self.alive = True
        self.models, self.memory, self.gpu_lets = {}, {}, ()
        self.log = []
        self.fails = False
        self.without = set()
        self.loads = asyncio.Event()
        self.loads.set()
        self.free = asyncio.Event()
        self.free.set()
        self._executor = Executor()

    def executor(self, gpu_let):
        assert gpu_let in {each.name for each in self.gpu_lets}
        return self._executor

    def left_out(self):
        return self.without

    async def load(self, models):
        await self.loads.wait()
        self.models |= models

    async def answers(self):
        await self.free.wait()

    async def prepare(self, models, gpu_lets):
        if self.fails:
            raise ModelError("no room")
        self.models |= models
        self.gpu_lets = tuple(gpu_lets)
        self.log.append([gpu_let.name for gpu_let in gpu_lets])

    async def restore(self, models, gpu_lets):
        if self.gpu_lets != gpu_lets:
            await Device.prepare(self, models, gpu_lets)

    async def retire(self, models):
        self.models = {name: spec for name, spec in self.models.items() if name in models}


def plan_of(**gpu_lets):
    """gpu0=[(share, models...)], ..."""
    return Plan(
        policy="test", device="", origin="", demands=(),
        gpus=tuple(
            Gpu(
                index=int(name[3:]), memory_mib=0,
                gpu_lets=tuple(
                    PlannedGpuLet(
                        sm=sm, duty_ms=0, occupancy=0, tasks=tuple(whole_task(model(each), 4) for each in models)
                    )
                    for sm, *models in each
                ),
            )
            for name, each in gpu_lets.items()
        ),
    )  # fmt: skip


def fleet_of(count=1):
    engine = Engine()
    for name in "abc":
        engine.models[name] = ServedModel(model(name, platform="modelled"))
    devices = [Device(index) for index in range(count)]
    return Fleet(engine, devices), engine, devices


def test_a_gpu_let_that_stays_keeps_its_name_and_no_name_comes_back():
    async def run():
        fleet, _, (device,) = fleet_of()
        await fleet.apply(plan_of(gpu0=[(0.5, "a"), (0.5, "b")]))
        await fleet.apply(plan_of(gpu0=[(0.5, "b"), (0.25, "a"), (0.25, "c")]))
        await fleet.apply(plan_of(gpu0=[(0.5, "a"), (0.5, "b")]))
        assert device.log == [
            ["gpu0/let0", "gpu0/let1"],
            ["gpu0/let1", "gpu0/let2", "gpu0/let3"],
            ["gpu0/let4", "gpu0/let1"],
        ]
        assert set(device.models) == {"a", "b"}

    asyncio.run(run())


def test_a_gpu_let_of_one_model_may_have_larger_batches_than_planned():
    async def run():
        fleet, _, (device,) = fleet_of()
        await fleet.apply(plan_of(gpu0=[(0.5, "a"), (0.5, "b", "c")]))
        assert [gpu_let.models for gpu_let in device.gpu_lets] == [{"a": 8}, {"b": 4, "c": 4}]

    asyncio.run(run())


def test_when_one_device_cannot_all_stay_as_they_were():
    async def run():
        fleet, engine, (first, second) = fleet_of(2)
        old = plan_of(gpu0=[(1.0, "a")], gpu1=[(1.0, "b")])
        await fleet.apply(old)
        second.fails = True
        with pytest.raises(ModelError, match="no room"):
            await fleet.apply(plan_of(gpu0=[(1.0, "c")], gpu1=[(1.0, "b")]))
        assert fleet.plan() is old
        assert first.log == [["gpu0/let0"], ["gpu0/let1"], ["gpu0/let0"]]
        assert engine.serves("a")
        assert not engine.serves("c")

    asyncio.run(run())


def test_no_device_gives_its_gpu_lets_up_for_what_another_one_still_loads_or_runs():
    async def run():
        fleet, engine, (first, second) = fleet_of(2)
        await fleet.apply(plan_of(gpu0=[(1.0, "a")], gpu1=[(1.0, "a")]))
        second.loads.clear()
        plan = plan_of(gpu0=[(0.5, "a")], gpu1=[(0.5, "a"), (0.5, "b")])
        applying = asyncio.create_task(fleet.apply(plan, {name: engine.models[name].spec for name in "ab"}))
        await asyncio.sleep(0.01)
        assert first.log == [["gpu0/let0"]]
        engine.leave, left = leaves(first)
        second.loads.set()
        await applying
        assert left == [[["gpu0/let0"]]]
        assert first.log == [["gpu0/let0"], ["gpu0/let1"]]

    def leaves(device):
        left = []

        async def leave(_):
            left.append(list(device.log))

        return leave, left

    asyncio.run(run())


def test_no_device_gives_its_gpu_lets_up_before_all_answer():
    async def run():
        fleet, engine, (first, second) = fleet_of(2)
        await fleet.apply(plan_of(gpu0=[(1.0, "a")], gpu1=[(1.0, "a")]))
        second.free.clear()
        applying = asyncio.create_task(fleet.apply(plan_of(gpu0=[(0.5, "a")], gpu1=[(0.5, "a")])))
        await asyncio.sleep(0.01)
        assert (first.log, engine.serves("a")) == ([["gpu0/let0"]], True)
        second.free.set()
        await applying
        assert first.log == [["gpu0/let0"], ["gpu0/let1"]]

    asyncio.run(run())


def test_what_was_to_leave_stays_where_a_device_cannot_change():
    async def run():
        fleet, engine, (device,) = fleet_of()
        await fleet.apply(plan_of(gpu0=[(0.5, "a"), (0.5, "b")]))
        device.fails = True
        for gpu_let in engine._dispatcher.gpu_lets:
            gpu_let.suspended = True  # a batch came back from where there was none
        with pytest.raises(ModelError, match="no room"):
            await fleet.apply(plan_of(gpu0=[(1.0, "a")]), {"a": engine.models["a"].spec})
        assert engine.models["b"].leaving == ""
        assert not engine.why_not("b")

    asyncio.run(run())


def test_what_a_device_could_not_load_again_stays_away_where_it_cannot_change():
    async def run():
        fleet, engine, (device,) = fleet_of()
        await fleet.apply(plan_of(gpu0=[(1.0, "a", "b")]))
        del device.models["a"]
        engine.take_away(0, "a", "its file is gone")
        device.fails = True
        with pytest.raises(ModelError, match="no room"):
            await fleet.apply(plan_of(gpu0=[(0.5, "b")]))
        assert not engine.serves("a")  # a batch of it would find nothing there, and stop the gpu-let for b
        assert engine.serves("b")

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_device_started_again_without_is_tried_once_more(fails):
    async def run():
        fleet, engine, (device,) = fleet_of()
        await fleet.apply(plan_of(gpu0=[(0.5, "a", "b"), (0.5, "c")]))
        for name in "ac":
            del device.models[name]
            engine.take_away(0, name, "it asks b")
        device.without, device.fails = {"a", "gone"}, fails
        await fleet.complete(device)
        assert engine.serves("b")
        assert (engine.why_not("a"), engine.why_not("c")) == ("it asks b" if fails else "", "it asks b")
        if not fails:
            assert [set(each.models) for each in device.gpu_lets] == [{"a", "b"}, set()]

    asyncio.run(run())


def test_devices_that_are_dead_are_not_counted():
    async def run():
        fleet, _, (first, _) = fleet_of(2)
        assert [device.index for device in fleet.devices()] == [0, 1]
        first.alive = False
        assert [device.index for device in fleet.devices()] == [1]

    asyncio.run(run())
