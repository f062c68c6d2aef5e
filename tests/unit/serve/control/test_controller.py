"""The controller beside a fleet in virtual time: rates that change, devices that die, plans that fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import looptime
from hypothesis import example, given
from hypothesis import strategies as st

from gemlet.errors import GemletError
from gemlet.serve.control.change import Change
from gemlet.serve.control.controller import Controller
from gemlet.serve.control.decide import capacity
from gemlet.serve.control.planning import PlanningProcess
from gemlet.serve.control.propose import Proposal, Question
from gemlet.serve.control.settings import Cause, ControlSettings
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.server.fleet import DeviceInfo
from tests.examples import few
from tests.unit.serve.cases import demand, scaling, world

PLANNER = PlanOptions(quantile=0.9, grid=10)
Rates = Callable[[float], Mapping[str, float]]  # requests/s of each model at a second


@dataclass
class FakeFleet:
    """Counts what the rates say, applies within ``apply_s``; devices die and come back as told."""

    rates: Rates
    alive: list[int]
    apply_s: float = 0.05
    chance: random.Random | None = None
    fail_next: int = 0
    current: Plan = field(default_factory=lambda: Plan(policy="", device="", origin="", gpus=(), demands=()))
    applied: list[tuple[float, Plan]] = field(default_factory=list)
    _seen: float | None = None
    _owed: dict[str, float] = field(default_factory=dict)

    def counts(self) -> Mapping[str, int]:
        now = asyncio.get_running_loop().time()
        before, self._seen = self._seen, now
        if before is None:
            return {}
        counts = {}
        for model, rate in self.rates((now + before) / 2).items():
            mean = rate * (now - before)
            if self.chance is not None:
                counts[model] = max(0, round(self.chance.gauss(mean, mean**0.5)))
                continue
            owed = self._owed.get(model, 0.0) + mean
            counts[model] = int(owed)
            self._owed[model] = owed - int(owed)
        return counts

    async def apply(self, plan: Plan) -> None:
        await asyncio.sleep(self.apply_s)
        if self.fail_next:
            self.fail_next -= 1
            raise GemletError("an executor died")
        assert {gpu.index for gpu in plan.gpus} <= set(self.alive), "a plan for a device that is not there"
        self.current = plan
        self.applied.append((asyncio.get_running_loop().time(), plan))

    def devices(self) -> Sequence[DeviceInfo]:
        return [DeviceInfo(index) for index in self.alive]

    def plan(self) -> Plan:
        return self.current


class Scales:
    """Starts and stops devices, a second later."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.asked: list[int] = []

    async def scale(self, devices: int) -> None:
        self.asked.append(devices)
        asyncio.get_running_loop().call_later(1.0, self._do, devices)

    def _do(self, devices: int) -> None:
        self.fleet.alive = list(range(devices))


def in_virtual_time(controller: Controller, seconds: float, *events: tuple[float, Callable[[], None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for at, do in events:
            loop.call_later(at, do)
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(seconds)
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


PROFILES = world(a=scaling(1.0), b=scaling(2.0), c=scaling(4.0))
SLOS = {"a": 10.0, "b": 20.0, "c": 40.0}


def controlled(fleet: FakeFleet, rates: Mapping[str, float], **more: object) -> Controller:
    demands = [demand(model, rate, SLOS[model]) for model, rate in rates.items()]
    scaler = Scales(fleet) if "most" in more else None
    options = ControlSettings(planner=PLANNER, **more)  # type: ignore[arg-type]
    return Controller(fleet, PROFILES, demands, options, scaler=scaler)


def constant(**rates: float) -> Rates:
    return lambda _second: rates


def serves(plan: Plan, model: str, rate: float) -> bool:
    return capacity(plan, model) >= rate


def test_the_first_plan_comes_at_once() -> None:
    fleet = FakeFleet(constant(a=300, b=100), [0, 1])
    in_virtual_time(controlled(fleet, {"a": 300, "b": 100}), 1.0)
    ((at, first),) = fleet.applied
    assert at < 0.2
    assert serves(first, "a", 300)
    assert serves(first, "b", 100)


@few(4)
@given(a=st.floats(0, 600), b=st.floats(0, 250), guess=st.floats(0.2, 3.0), seed=st.none() | st.integers(0, 1000))
@example(a=0.0, b=1.740234375, guess=1.73828125, seed=None)
def test_constant_rates_do_not_flap_and_everybody_is_served(a: float, b: float, guess: float, seed: int | None) -> None:
    fleet = FakeFleet(constant(a=a, b=b), [0, 1, 2], chance=None if seed is None else random.Random(seed))
    in_virtual_time(controlled(fleet, {"a": a * guess, "b": b * guess}), 300.0)
    late = [at for at, _ in fleet.applied if at > 100]  # by then the guess is forgotten
    assert len(late) <= (0 if seed is None else 2)
    for _, made in fleet.applied:
        assert {task.model for task in made.tasks()} == {"a", "b"}
    assert serves(fleet.applied[-1][1], "a", a)
    assert serves(fleet.applied[-1][1], "b", b)


def test_a_step_is_an_emergency_and_is_over_within_two_seconds() -> None:
    fleet = FakeFleet(lambda t: {"a": 300 if t < 60 else 1500, "b": 100}, [0, 1, 2])
    controller = controlled(fleet, {"a": 300, "b": 100})
    in_virtual_time(controller, 70.0)
    done = next(at for at, made in fleet.applied if at > 60 and serves(made, "a", 1500))
    assert done < 62
    emergency = next(change for change in controller.history if change.at >= 60)
    assert emergency.cause.reason == "overload"
    assert "a: " in emergency.cause.text


def test_a_ramp_is_met_ahead_of_time() -> None:
    def rates(t: float) -> Mapping[str, float]:
        return {"a": 300 + 20 * max(0.0, t - 30)}

    fleet = FakeFleet(rates, [0, 1, 2])
    in_virtual_time(controlled(fleet, {"a": 300}), 75.0)
    in_force = None
    short = 0.0
    for tick in range(1, 750):
        in_force = next((made for at, made in reversed(fleet.applied) if at <= tick / 10), in_force)
        if in_force is not None and not serves(in_force, "a", rates(tick / 10)["a"]):
            short += 0.1
    assert short < 3.0, "seconds of 45 in which the plan could not serve the rate"


def test_a_plan_that_was_asked_for_before_a_model_came_is_not_applied_after() -> None:
    """The server loads a model and brings a plan for it into force while the controller's next plan is being made."""
    fleet = FakeFleet(lambda t: {"a": 300 if t < 20 else 1500, "b": 100, "c": 50}, [0, 1, 2])
    controller = controlled(fleet, {"a": 300, "b": 100})
    in_time = controller._ask
    came = []

    async def slow(question: Question) -> Proposal:
        if question.cause.reason == "overload" and not came:
            came.append(asyncio.create_task(load_c()))
            await asyncio.sleep(0.3)
        return await in_time(question)

    async def load_c() -> None:
        async with controller.applying:
            demands = [*controller.decider.demands, demand("c", 50, SLOS["c"])]
            made = plan(PROFILES, demands, Inventory(gpus=3), None, PLANNER)
            assert isinstance(made, Plan)
            await asyncio.sleep(0.5)  # longer than the controller needs for its plan
            await fleet.apply(made)
            controller.decider.demand(demands[-1])
            controller.decider.started_with(made, asyncio.get_running_loop().time())

    controller._ask = slow
    in_virtual_time(controller, 40.0)
    plans = [{task.model for task in made.tasks()} for _, made in fleet.applied]
    first = plans.index({"a", "b", "c"})
    assert all(models == {"a", "b", "c"} for models in plans[first:])
    assert serves(fleet.applied[-1][1], "a", 1500)


def test_a_planner_with_a_fault_does_not_end_the_server() -> None:
    fleet = FakeFleet(lambda t: {"a": 300 if t < 20 else 1500}, [0, 1])
    controller = controlled(fleet, {"a": 300})
    in_time, failed = controller._ask, []

    async def faulty(question: Question) -> Proposal:
        if question.cause.reason == "overload" and not failed:
            failed.append(question)
            raise KeyError("a")
        return await in_time(question)

    controller._ask = faulty
    in_virtual_time(controller, 40.0)
    assert failed
    assert "KeyError" in next(change.failure for change in controller.history if change.failure)
    assert serves(fleet.applied[-1][1], "a", 1500)


def test_a_paused_controller_makes_no_plans() -> None:
    fleet = FakeFleet(lambda t: {"a": 300 if t < 20 else 1500}, [0, 1])
    controller = controlled(fleet, {"a": 300})

    def pause() -> None:
        controller.paused = True

    in_virtual_time(controller, 40.0, (10.0, pause))
    assert all(at < 10 for at, _ in fleet.applied)


def test_a_lost_device_is_planned_around_at_once() -> None:
    fleet = FakeFleet(constant(a=700, b=300), [0, 1, 2])
    controller = controlled(fleet, {"a": 700, "b": 300})
    in_virtual_time(controller, 60.0, (20.0, lambda: fleet.alive.remove(1)), (40.0, lambda: fleet.alive.append(1)))
    assert any(gpu.index == 1 for gpu in fleet.applied[0][1].gpus)
    (lost,) = (change for change in controller.history if change.at >= 20)  # and that it is back changes nothing
    assert (lost.cause.reason, lost.cause.text) == ("devices", "device 1 is lost")
    assert lost.at < 20.6
    assert lost.took_s < 0.2
    assert {gpu.index for gpu in fleet.current.gpus} == {0, 2}


def test_a_device_that_comes_is_used_at_once_in_overload() -> None:
    fleet = FakeFleet(constant(a=1500), [0, 1])
    controller = controlled(fleet, {"a": 1500})
    in_virtual_time(controller, 40.0, (20.0, lambda: fleet.alive.remove(0)), (30.0, lambda: fleet.alive.append(0)))
    parts = [(change.cause.text, change.part < 1) for change in controller.history if change.at >= 20]
    assert parts == [("device 0 is lost", True), ("device 0 is back", False)]
    assert serves(fleet.current, "a", 1500)


def test_a_device_that_no_plan_uses_may_come_and_go() -> None:
    fleet = FakeFleet(constant(a=100), [0, 1, 2])
    controller = controlled(fleet, {"a": 100})
    in_virtual_time(controller, 40.0, (20.0, lambda: fleet.alive.remove(2)), (30.0, lambda: fleet.alive.append(2)))
    assert len(controller.history) == 1


def test_with_too_few_devices_everybody_still_has_a_place() -> None:
    fleet = FakeFleet(constant(a=2000, b=1000, c=500), [0])
    controller = controlled(fleet, {"a": 2000, "b": 1000, "c": 500})
    in_virtual_time(controller, 30.0)
    assert {task.model for task in fleet.current.tasks()} == {"a", "b", "c"}
    first = controller.history[0]
    assert 0 < first.part < 0.5
    assert any("too few devices" in note for note in first.notes)
    assert len(controller.history) <= 3  # and it does not try again and again what cannot be


def test_an_absurd_rate_is_planned_for_as_far_as_devices_go() -> None:
    fleet = FakeFleet(lambda t: {"a": 100 if t < 5 else 1e9, "b": 100}, [0, 1])
    controller = controlled(fleet, {"a": 100, "b": 100})
    in_virtual_time(controller, 8.0)
    assert {task.model for task in fleet.current.tasks()} == {"a", "b"}
    assert capacity(fleet.current, "a") > 500
    assert controller.history[-1].part < 1e-5


def test_a_model_that_nothing_can_serve_does_not_cost_the_others_their_places() -> None:
    fleet = FakeFleet(constant(a=100, c=10), [0])
    demands = [demand("a", 100, 10), demand("c", 10, 1.0)]  # 4 ms of work within 1 ms
    controller = Controller(fleet, PROFILES, demands, ControlSettings(planner=PLANNER))
    in_virtual_time(controller, 10.0)
    assert {task.model for task in fleet.current.tasks()} == {"a"}
    assert any("not served: c" in note for note in controller.history[0].notes)


def test_no_device_at_all_and_then_one() -> None:
    fleet = FakeFleet(constant(a=100), [])
    in_virtual_time(controlled(fleet, {"a": 100}), 10.0, (5.0, lambda: fleet.alive.append(0)))
    assert [round(at) for at, _ in fleet.applied] == [5]


def test_a_plan_that_could_not_be_applied_is_tried_again() -> None:
    fleet = FakeFleet(constant(a=100), [0], fail_next=2)
    controller = controlled(fleet, {"a": 100})
    in_virtual_time(controller, 10.0)
    assert [change.failure for change in controller.history] == ["an executor died", "an executor died", None]
    assert len(fleet.applied) == 1


def test_a_device_lost_while_a_plan_is_applied() -> None:
    fleet = FakeFleet(constant(a=900, b=300), [0, 1, 2], apply_s=3.0)

    def lose() -> None:
        fleet.alive.remove(0)
        fleet.fail_next = 1

    in_virtual_time(controlled(fleet, {"a": 900, "b": 300}), 30.0, (1.0, lose))
    assert fleet.applied
    assert all(gpu.index != 0 for gpu in fleet.current.gpus)


def test_queues_that_grow_though_the_rate_is_as_planned_get_more() -> None:
    fleet = FakeFleet(constant(a=300), [0, 1])
    waiting = {"a": 0}
    demands = [demand("a", 300, 10)]
    controller = Controller(fleet, PROFILES, demands, ControlSettings(planner=PLANNER), waiting=lambda: waiting)
    in_virtual_time(controller, 40.0, (10.0, lambda: waiting.update(a=500)), (13.0, lambda: waiting.update(a=0)))
    assert "queue" in [change.cause.reason for change in controller.history]
    assert capacity(fleet.current, "a") > 1.2 * capacity(fleet.applied[0][1], "a")


def test_devices_follow_the_load() -> None:
    fleet = FakeFleet(lambda t: {"a": 300 if t < 30 or t > 60 else 2500}, [0])
    controller = controlled(fleet, {"a": 300}, least=1, most=4)
    in_virtual_time(controller, 140.0)
    scaler = controller._scaler
    assert isinstance(scaler, Scales)
    assert max(scaler.asked) >= 3
    assert scaler.asked[-1] == 1
    assert max(len(made.gpus) for _, made in fleet.applied) >= 3
    assert len(fleet.current.gpus) == 1
    served = next(at for at, made in fleet.applied if serves(made, "a", 2500))
    assert served < 34  # detection, a second to start devices, a plan


def test_where_a_device_is_lost_as_many_are_asked_for_again() -> None:
    """One that rests may take its place."""
    fleet = FakeFleet(constant(a=300), [0])
    controller = controlled(fleet, {"a": 300}, least=1, most=4)
    scaler = controller._scaler
    assert isinstance(scaler, Scales)

    def lose_all() -> None:
        fleet.alive = []

    in_virtual_time(controller, 40.0, (20.0, lose_all))
    assert fleet.alive == [0]
    assert serves(fleet.current, "a", 300)


def test_a_model_may_come_and_go() -> None:
    fleet = FakeFleet(constant(a=100, b=50), [0])
    controller = controlled(fleet, {"a": 100})
    in_virtual_time(
        controller,
        20.0,
        (5.0, lambda: controller.decider.demand(demand("b", 50, 20))),
        (12.0, lambda: controller.decider.forget("a")),
    )
    assert [sorted({task.model for task in made.tasks()}) for _, made in fleet.applied] == [["a"], ["a", "b"], ["b"]]


def test_the_first_plan_stays_if_it_is_good() -> None:
    made = plan(PROFILES, [demand("a", 300, 10)], Inventory(gpus=1), None, PLANNER)
    assert isinstance(made, Plan)
    fleet = FakeFleet(constant(a=300), [0], current=made)
    in_virtual_time(controlled(fleet, {"a": 300}), 60.0)
    assert fleet.applied == []


def test_weights_that_do_not_fit_beside_each_other_come_one_after_the_other() -> None:
    big = {name: scaling(1.0, weights_mib=6000.0) for name in "ab"}  # of 10000 MiB
    profiles = world(**big)
    fleet = FakeFleet(constant(a=100), [0])
    controller = Controller(fleet, profiles, [demand("a", 100, 10)], ControlSettings(planner=PLANNER))

    def other_model() -> None:
        controller.decider.forget("a")
        controller.decider.demand(demand("b", 100, 10))

    in_virtual_time(controller, 10.0, (5.0, other_model))
    assert [sorted(task.model for task in made.tasks()) for _, made in fleet.applied] == [["a"], [], ["b"]]


def test_where_the_second_step_fails_the_plan_of_before_comes_back() -> None:
    profiles = world(**{name: scaling(1.0, weights_mib=6000.0) for name in "ab"})  # of 10000 MiB
    fleet = FakeFleet(constant(a=100), [0])
    controller = Controller(fleet, profiles, [demand("a", 100, 10)], ControlSettings(planner=PLANNER))
    apply = fleet.apply

    async def without_b(plan: Plan) -> None:
        if any(task.model == "b" for task in plan.tasks()):
            raise GemletError("no room for b")
        await apply(plan)

    fleet.apply = without_b  # type: ignore[method-assign]

    def change(gone: str, come: str) -> None:
        controller.decider.forget(gone)
        controller.decider.demand(demand(come, 100, 10))

    in_virtual_time(controller, 20.0, (5.0, lambda: change("a", "b")), (10.0, lambda: change("b", "a")))
    assert {task.model for task in fleet.current.tasks()} == {"a"}


def test_a_look_that_fails_does_not_end_the_server() -> None:
    fleet = FakeFleet(lambda t: {"a": 300 if t < 20 else 1500}, [0, 1])
    counts, failed = fleet.counts, []

    def faulty() -> Mapping[str, int]:
        if len(failed) < 3:
            failed.append(None)
            raise KeyError("a")
        return counts()

    fleet.counts = faulty  # type: ignore[method-assign]
    in_virtual_time(controlled(fleet, {"a": 300}), 40.0)
    assert serves(fleet.applied[-1][1], "a", 1500)


def test_changes_are_told_in_sentences() -> None:
    change = Change(1.0, Cause("overload", "a: 9 requests/s"), 2, 3, 1, 0.5, 0.042)
    assert str(change) == (
        "planned anew (a: 9 requests/s): 2 devices, for 50% of the rates, 1 gpu-let changed and 3 as before,"
        " in force after 42 ms"
    )


def test_another_process_plans_the_same() -> None:
    question = Question(Cause("start", "x"), (Demand(model="a", rate=300, slo_ms=10),), (0, 2), None, ControlSettings())

    async def ask() -> Plan | None:
        with PlanningProcess(PROFILES) as planning:
            return (await planning(question)).plan

    made = asyncio.run(ask())
    assert made is not None
    assert serves(made, "a", 300)
