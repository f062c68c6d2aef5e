"""Plans for models that come, for what was learned and for devices that are back: each sees what the one before did."""

from __future__ import annotations

import asyncio
from pathlib import Path

import looptime
import pytest

from gemlet.serve.dispatch.engine import EMPTY
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution.executor import ExecutorFailed
from gemlet.serve.profiles.learned import AFTER_S
from gemlet.serve.server import serving_plan
from gemlet.serve.server.backend_choice import Choice
from gemlet.serve.server.fleet import DeviceInfo
from gemlet.serve.server.options import ServerOptions
from gemlet.serve.server.serving_plan import ServingPlan
from tests.unit.serve.stand_in import Service, model

LOAD_S = 20.0
PLAN_S = 1.0


class Fleet:
    """One change at a time, each of which takes as long as loading a model."""

    def __init__(self, engine, alive=(0,)):
        self.alive = list(alive)
        self._engine = engine
        self.fails = 0
        self._plan = EMPTY
        self._applying = asyncio.Lock()

    def plan(self):
        return self._plan

    def devices(self):
        return [DeviceInfo(index) for index in self.alive]

    def counts(self):
        return {}

    async def apply(self, plan, models=None):
        async with self._applying:
            await asyncio.sleep(LOAD_S)
            if self.fails:
                self.fails -= 1
                raise ExecutorFailed("the executor died again")
            self._plan = plan
            for label, spec in (models or {}).items():
                self._engine.models.setdefault(label, ServedModel(spec))


@pytest.fixture(autouse=True)
def planning_takes_a_second(monkeypatch):
    async def later(act, *given):
        await asyncio.sleep(PLAN_S)
        return act(*given)

    monkeypatch.setattr(serving_plan.asyncio, "to_thread", later)


def spec(name):
    return model(name, platform="python", slo_ms=50.0)


def world(*specs, backend="green", devices=(0,)):
    service = Service(*specs)
    options = ServerOptions(repository=Path("/nowhere"), profiles=Path("h200"), replan=False)
    plan = ServingPlan(options, Choice(backend, devices), service.engine)
    plan.fleet = Fleet(service.engine, devices)
    return service, plan


def virtually(coroutine):
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 3600))
    finally:
        loop.close()


async def learns(service, name):
    place = type("Place", (), {"model": name, "gpu_let": type("GpuLet", (), {"sm": 1.0, "gpu": 0}), "slowdown": 1.0})
    for _ in range(int(AFTER_S * 10) + 100):
        service.engine.expectation.observe(place, 4, 3.0)
        await asyncio.sleep(0.1)


def placed(plan):
    return {task.model for task in plan.fleet.plan().tasks()}


@pytest.mark.parametrize("new", ["resnet50", "nobody_knows"])
def test_what_was_learned_while_a_model_is_loaded_leaves_that_its_place(new):
    async def run():
        service, plan = world(spec("mine"))
        await learns(service, "mine")
        load = asyncio.create_task(plan.replan(new, {name: spec(name) for name in ("mine", new)}))
        await asyncio.sleep(PLAN_S + LOAD_S / 2)
        await plan.learn()
        await load
        assert placed(plan) == {"mine", new}

    virtually(run())


def test_a_model_that_is_loaded_while_the_plan_for_what_was_learned_is_made_has_its_place():
    async def run():
        service, plan = world(spec("mine"))
        await learns(service, "mine")
        learning = asyncio.create_task(plan.learn())
        await asyncio.sleep(PLAN_S / 2)
        await plan.replan("resnet50", {name: spec(name) for name in ("mine", "resnet50")})
        await learning
        assert placed(plan) == {"mine", "resnet50"}

    virtually(run())


def used(plan):
    return {gpu.index for gpu in plan.fleet.plan().gpus if gpu.gpu_lets}


def test_a_device_that_was_away_when_a_plan_was_made_is_used_when_it_is_back():
    async def run():
        _, plan = world(spec("mine"), backend="cpu", devices=(0, 1))
        plan.fleet.alive = [0]
        await plan.replan("other", {name: spec(name) for name in ("mine", "other")})
        assert used(plan) == {0}
        plan.fleet.alive = [0, 1]
        await plan.use_again(1)
        assert used(plan) == {0, 1}
        assert placed(plan) == {"mine", "other"}

    virtually(run())


def test_a_device_that_comes_back_while_the_plan_without_it_is_applied_is_used():
    async def run():
        _, plan = world(spec("mine"), backend="cpu", devices=(0, 1))
        plan.fleet.alive = [0]
        load = asyncio.create_task(plan.replan("other", {name: spec(name) for name in ("mine", "other")}))
        await asyncio.sleep(PLAN_S + LOAD_S / 2)
        plan.fleet.alive = [0, 1]
        await plan.use_again(1)
        await load
        assert used(plan) == {0, 1}

    virtually(run())


def test_a_device_that_dies_again_is_used_when_it_is_back_for_good():
    async def run():
        _, plan = world(spec("mine"), backend="cpu", devices=(0, 1))
        plan.fleet.alive = [0]
        await plan.replan("other", {name: spec(name) for name in ("mine", "other")})
        plan.fleet.alive, plan.fleet.fails = [0, 1], 2
        with pytest.raises(ExecutorFailed):
            await plan.use_again(1)
        with pytest.raises(ExecutorFailed):
            await plan.replan("third", {name: spec(name) for name in ("mine", "other", "third")})
        await plan.use_again(1)
        assert used(plan) == {0, 1}

    virtually(run())


def test_a_device_without_which_no_plan_was_made_changes_nothing_when_it_is_back():
    async def run():
        _, plan = world(spec("mine"), backend="cpu", devices=(0, 1))
        await plan.replan("other", {name: spec(name) for name in ("mine", "other")})
        before = plan.fleet.plan()
        await plan.use_again(1)
        assert plan.fleet.plan() is before

    virtually(run())


class Controller:
    """Follows the load, unless it is paused: then it makes no plan for a device either."""

    def __init__(self, paused):
        self.paused = paused
        self.applying = asyncio.Lock()
        self.decider = type("Decider", (), {"demands": (), "started_with": lambda *_: None})()


@pytest.mark.parametrize("paused", [False, True])
def test_a_controller_that_follows_the_load_makes_the_plan_itself(paused):
    async def run():
        _, plan = world(spec("mine"), backend="cpu", devices=(0, 1))
        plan.fleet.alive = [0]
        await plan.replan("other", {name: spec(name) for name in ("mine", "other")})
        plan.fleet.alive = [0, 1]
        plan.controller = Controller(paused)
        await plan.use_again(1)
        assert used(plan) == ({0, 1} if paused else {0})

    virtually(run())
