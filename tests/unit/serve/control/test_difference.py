"""Steps from plan to plan: done in order on a model of a fleet, they lead to the new plan and lose nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.control import difference
from gemlet.serve.control.difference import Adopt, Load, Partition, Step, Unload
from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet, Task

MODELS = ("a", "b", "c", "d")


def task(model: str, batch: int = 4) -> Task:
    return Task(model=model, rate=1, capacity=1, batch=batch, latency_ms=1, worst_ms=2, slo_ms=9, slowdown=1)


def gpu_let(sm: float, *models: str, batch: int = 4) -> PlannedGpuLet:
    return PlannedGpuLet(sm=sm, duty_ms=1, occupancy=1, tasks=tuple(task(model, batch) for model in models))


def plan(gpus: dict[int, list[PlannedGpuLet]]) -> Plan:
    built = tuple(Gpu(index=index, memory_mib=0, gpu_lets=tuple(gpu_lets)) for index, gpu_lets in sorted(gpus.items()))
    return Plan(policy="x", device="x", origin="modelled", gpus=built, demands=())


gpu_lets = st.builds(
    lambda sm, models, batch: gpu_let(sm, *models, batch=batch),
    st.sampled_from((0.2, 0.3)),
    st.lists(st.sampled_from(MODELS), min_size=1, max_size=2, unique=True),
    st.integers(1, 3),
)
plans = st.builds(
    plan, st.dictionaries(st.integers(0, 2), st.lists(gpu_lets, min_size=1, max_size=3), min_size=1, max_size=3)
)


def shape(gpu_lets: tuple[PlannedGpuLet, ...]) -> list[tuple[float, frozenset[tuple[str, int]]]]:
    """What an executor knows of gpu-lets: in which order a gpu-let's models are named is nothing to it."""
    return [(one.sm, frozenset((t.model, t.batch) for t in one.tasks)) for one in gpu_lets]


class Machine:
    """Does steps as a fleet would, and notices requests that would be sent to a device without their model."""

    def __init__(self, start: Plan) -> None:
        self.loaded = {(gpu.index, t.model) for gpu in start.gpus for one in gpu.gpu_lets for t in one.tasks}
        self.gpu_lets = {gpu.index: gpu.gpu_lets for gpu in start.gpus}
        self.plan = start
        self.served: list[set[str]] = [{t.model for t in start.tasks()}]
        self.most: dict[int, int] = {}

    def do(self, step: Step) -> None:
        match step:
            case Load(gpu, model):
                assert (gpu, model) not in self.loaded
                self.loaded.add((gpu, model))
            case Partition(gpu, gpu_lets):
                self.gpu_lets[gpu] = gpu_lets
            case Adopt(new):
                needed = {(gpu.index, t.model) for gpu in new.gpus for one in gpu.gpu_lets for t in one.tasks}
                assert needed <= self.loaded, "requests would go where the model is not loaded"
                self.plan = new
                self.served.append({t.model for t in new.tasks()})
            case Unload(gpu, model):
                using = {(g.index, t.model) for g in self.plan.gpus for one in g.gpu_lets for t in one.tasks}
                assert (gpu, model) not in using, "a model in use would go"
                self.loaded.remove((gpu, model))
        for gpu in {gpu for gpu, _ in self.loaded}:
            self.most[gpu] = max(self.most.get(gpu, 0), sum(g == gpu for g, _ in self.loaded))

    def check_it_is(self, new: Plan) -> None:
        assert self.plan == new
        assert self.loaded == {(gpu.index, t.model) for gpu in new.gpus for one in gpu.gpu_lets for t in one.tasks}
        there = {index: shape(gpu_lets) for index, gpu_lets in self.gpu_lets.items() if gpu_lets}
        assert there == {gpu.index: shape(gpu.gpu_lets) for gpu in new.gpus}


@given(old=plans, new=plans)
def test_a_difference_applied_is_the_new_plan(old: Plan, new: Plan) -> None:
    machine = Machine(old)
    for step in difference.steps(old, new):
        machine.do(step)
    machine.check_it_is(new)
    both = machine.served[0] & machine.served[-1]
    assert all(both <= served for served in machine.served)  # whom both plans serve, no plan in between leaves out


@given(old=plans, new=plans)
def test_weights_that_do_not_fit_together_are_never_loaded_together(old: Plan, new: Plan) -> None:
    most = {
        gpu.index: max(
            len({t.model for one in g.gpu_lets for t in one.tasks})
            for p in (old, new)
            for g in p.gpus
            if g.index == gpu.index
        )
        for p in (old, new)
        for gpu in p.gpus
    }
    machine = Machine(old)
    for step in difference.steps(old, new, fits=lambda gpu, models: len(models) <= most[gpu]):
        machine.do(step)
    machine.check_it_is(new)
    assert all(machine.most[gpu] <= most[gpu] for gpu in machine.most)


@given(old=plans)
def test_the_same_plan_needs_nothing_but_to_be_adopted(old: Plan) -> None:
    assert difference.steps(old, old) == [Adopt(old)]


def test_what_stayed_and_what_moved() -> None:
    old = plan({0: [gpu_let(0.5, "a"), gpu_let(0.5, "b")], 1: [gpu_let(0.5, "c")]})
    new = plan({0: [gpu_let(0.5, "a"), gpu_let(0.3, "b")], 1: [gpu_let(0.5, "c", batch=8)]})
    assert difference.moved(old, new) == (1, 2)
    assert difference.moved(None, new) == (0, 3)


def test_the_order_of_steps() -> None:
    old = plan({0: [gpu_let(0.5, "a")], 1: [gpu_let(1.0, "b")]})
    new = plan({0: [gpu_let(0.5, "a"), gpu_let(0.5, "b")]})
    assert difference.steps(old, new) == [
        Load(0, "b"), Partition(0, new.gpus[0].gpu_lets), Partition(1, ()), Adopt(new), Unload(1, "b"),
    ]  # fmt: skip
