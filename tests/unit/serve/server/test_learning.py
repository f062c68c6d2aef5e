"""A server in virtual time learns what a model without a profile takes, and plans it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import looptime
import msgspec
import pytest

from gemlet.serve.dispatch.engine import EMPTY
from gemlet.serve.execution.executor import ExecutorFailed
from gemlet.serve.profiles.learned import AFTER_S
from gemlet.serve.server import serving_plan
from gemlet.serve.server.backend_choice import Choice
from gemlet.serve.server.options import ServerOptions
from gemlet.serve.server.serving_plan import ServingPlan
from tests.counting import calls
from tests.unit.serve.cases import scaling
from tests.unit.serve.stand_in import Service, model
from tests.unit.serve.two_kinds import two

LOOK_S = 5.0


class Fleet:
    """The plan in force, and nothing beside it."""

    def __init__(self):
        self.plans = []

    def plan(self):
        return self.plans[-1] if self.plans else EMPTY

    def devices(self):
        return []

    async def apply(self, plan, models=None):
        self.plans.append(plan)


@pytest.fixture
def here(monkeypatch):
    """Plans are made at once: a thread takes time of its own."""

    async def at_once(act, *given):
        return act(*given)

    monkeypatch.setattr(serving_plan.asyncio, "to_thread", at_once)


def world(*specs, known=None):
    service = Service(*specs)
    options = ServerOptions(repository=Path("/nowhere"), profiles=Path("h200"), replan=False)
    devices = (0,) if known is None else tuple(known.devices)
    plan = ServingPlan(options, Choice("green", devices), service.engine, known)
    plan.fleet = Fleet()
    return service, plan


def spec(name, revision="a", **more):
    return msgspec.structs.replace(model(name, platform="python", slo_ms=50.0, **more), revision=revision)


class Place:
    """A gpu-let of the whole device that a model has its turns on."""

    def __init__(self, name, gpu=0):
        self.model, self.gpu_let, self.slowdown = name, type("GpuLet", (), {"sm": 1.0, "gpu": gpu}), 1.0


async def traffic(service, plan, name, seconds, *, rows=4, each_s=0.1, ms=3.0, gpu=0):
    loop = asyncio.get_running_loop()
    end, look = loop.time() + seconds, loop.time() + LOOK_S
    while loop.time() < end:
        service.engine.expectation.observe(Place(name, gpu), rows, ms)
        await asyncio.sleep(each_s)
        if loop.time() >= look:
            look += LOOK_S
            await plan.learn()


def virtually(coroutine):
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def test_a_model_is_planned_after_a_minute(here):
    async def run():
        service, plan = world(spec("mine"))
        assert plan.basis()["profiles"] == "none"
        await traffic(service, plan, "mine", AFTER_S - LOOK_S)
        assert plan.fleet.plans == []
        await traffic(service, plan, "mine", 3 * LOOK_S)
        (made,) = plan.fleet.plans
        (task,) = made.tasks()
        assert (task.model, made.policy) == ("mine", "nway+type")
        assert made.demands[0].rate == pytest.approx(40.0, rel=0.1)
        assert plan.basis() == {
            "profiles": "learned from its batches: mine",
            "plan": "policy nway+type, learned from its batches: mine",
        }

    virtually(run())


def test_a_new_revision_is_learned_anew(here):
    async def run():
        service, plan = world(spec("mine"))
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S)
        served = service.engine.models["mine"]
        served.spec = spec("mine", revision="b")
        assert plan.basis()["profiles"] == "none"
        await traffic(service, plan, "mine", AFTER_S - LOOK_S)
        assert plan.basis()["profiles"] == "none"
        await traffic(service, plan, "mine", 3 * LOOK_S)
        assert plan.basis()["profiles"] == "learned from its batches: mine"

    virtually(run())


def test_what_a_model_takes_is_learned_for_each_kind_of_device_by_itself(here):
    async def run():
        both, _ = two({"other": scaling(1.0)}, {"other": scaling(1.0)})
        service, plan = world(spec("mine"), known=both)
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S, gpu=1, ms=9.0)
        assert plan.basis() == {
            "profiles": "one: none; other: learned from its batches: mine",
            "plan": "policy nway+type, learned from its batches: mine",
        }
        assert [gpu.device for gpu in plan.fleet.plan().gpus] == ["other"]
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S, gpu=0, ms=3.0)
        expects = service.engine.expectation
        plan.tell_expectation()
        assert expects(Place("mine", 0), 4) < 0.5 * expects(Place("mine", 1), 4)

    virtually(run())


def test_all_models_of_a_plan_need_a_profile(here):
    async def run():
        service, plan = world(spec("mine"), spec("other"))
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S)
        assert plan.fleet.plans == []
        assert plan.basis()["profiles"] == "learned from its batches: mine"
        await traffic(service, plan, "other", AFTER_S + 2 * LOOK_S)
        assert {task.model for task in plan.fleet.plan().tasks()} == {"mine", "other"}

    virtually(run())


def test_a_profile_that_was_measured_goes_before(here):
    async def run():
        service, plan = world(spec("resnet50"), spec("mine"))
        await traffic(service, plan, "resnet50", AFTER_S + 2 * LOOK_S)
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S)
        told = plan.basis()
        assert told["profiles"] == "measured, of resnet50 only; learned from its batches: mine"
        assert told["plan"].endswith("measured profiles of NVIDIA H200; learned from its batches: mine")

    virtually(run())


def test_what_a_plan_rests_on_is_told_in_steps_by_the_number_of_models(here):
    """Clients ask for it (GET /v2): where there were a thousand models, others waited for a second each time."""

    def steps(number):
        _, plan = world(*(spec(f"model{each}") for each in range(number)))
        return calls(plan.basis)

    assert steps(200) < 3 * steps(100)


def test_a_plan_that_could_not_come_into_force_is_tried_again(here, monkeypatch):
    async def run():
        service, plan = world(spec("mine"))
        apply, failed, controls = plan.fleet.apply, [], []

        async def fails(*given):
            if len(failed) < 2:
                failed.append(given)
                raise ExecutorFailed("the executor of device 0 is being started again")
            await apply(*given)

        monkeypatch.setattr(plan.fleet, "apply", fails)
        plan._start_control = lambda: controls.append(len(plan.fleet.plans))
        for _ in range(int((AFTER_S + 5 * LOOK_S) / LOOK_S)):
            try:
                await traffic(service, plan, "mine", LOOK_S + 0.05)
            except ExecutorFailed:
                assert not controls
        assert len(failed) == 2
        assert len(plan.fleet.plans) == 1
        assert controls[0] == 1

    virtually(run())


def test_what_was_learned_is_of_use_once_a_model_without_a_profile_has_gone(here):
    async def run():
        service, plan = world(spec("mine"), spec("idle"))
        await traffic(service, plan, "mine", AFTER_S + 2 * LOOK_S)
        assert plan.fleet.plans == []
        del service.engine.models["idle"]
        await traffic(service, plan, "mine", 2 * LOOK_S)
        (made,) = plan.fleet.plans
        assert [task.model for task in made.tasks()] == ["mine"]

    virtually(run())
