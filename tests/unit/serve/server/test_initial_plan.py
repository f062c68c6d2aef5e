"""The plan a server starts with: by the planner, or as the models' configuration says."""

from __future__ import annotations

import msgspec
import pytest

from gemlet.errors import UsageError
from gemlet.serve.plan.model import Demand
from gemlet.serve.profiles import kinds, modelled
from gemlet.serve.server import backend_choice, initial_plan
from gemlet.serve.server.backend_choice import profiles_of
from tests.unit.serve.stand_in import model
from tests.unit.serve.two_kinds import named

KNOWN = modelled.h200()


def spec(name, **more):
    return model(name, platform=more.pop("platform", "modelled"), max_batch=32, **more)


def placed(plan):
    return {
        gpu.index: [(round(gpu_let.sm, 3), [task.model for task in gpu_let.tasks]) for gpu_let in gpu.gpu_lets]
        for gpu in plan.gpus
    }


def test_with_profiles_the_planner_gives_every_model_a_place():
    specs = [spec("resnet50", slo_ms=25.0), spec("bert", slo_ms=25.0)]
    plan = initial_plan.make(specs, KNOWN, [0, 1])
    assert plan.policy == "nway+type"
    assert {task.model for task in plan.tasks()} == {"resnet50", "bert"}
    assert all(task.worst_ms <= 25.0 for task in plan.tasks())


def test_plans_are_for_the_devices_there_are():
    plan = initial_plan.make([spec("resnet50", slo_ms=25.0)], KNOWN, [3])
    assert [gpu.index for gpu in plan.gpus] == [3]


def test_demands_go_before_guesses():
    specs = [spec("resnet50", slo_ms=25.0)]
    plan = initial_plan.make(specs, KNOWN, [0], demands=[Demand(model="resnet50", rate=100, slo_ms=25.0)])
    assert plan.demands[0].rate == 100
    with pytest.raises(UsageError, match="no place for bert"):
        initial_plan.make(
            [*specs, spec("bert", slo_ms=25.0)], KNOWN, [0], demands=[Demand(model="resnet50", rate=100, slo_ms=25.0)]
        )


def test_rates_that_cannot_be_planned_for_are_not_passed_over_in_silence():
    specs = [spec("resnet50", sm=0.3), spec("language", platform="python")]
    demands = [Demand(model="resnet50", rate=100, slo_ms=25.0)]
    known = profiles_of(specs, KNOWN, "cpu")
    assert initial_plan.make(specs, known, [0]).notes == ()
    assert initial_plan.make(specs, known, [0], demands=demands).notes == (
        "not planned for the rates given: there is no profile of language for this device; `sm` is set for resnet50",
    )


def test_a_model_that_nobody_demanded_gets_what_is_left():
    specs = [spec("resnet50", slo_ms=25.0), spec("bert", slo_ms=25.0)]
    plan = initial_plan.make(specs, KNOWN, [0], demands=[Demand(model="resnet50", rate=100, slo_ms=25.0)], fill=True)
    assert {demand.model: demand.rate for demand in plan.demands}["resnet50"] == 100
    assert {task.model for task in plan.tasks()} == {"resnet50", "bert"}


def test_more_demand_than_devices_leaves_nobody_without_a_place():
    specs = [spec("resnet50", slo_ms=25.0), spec("bert", slo_ms=25.0)]
    plan = initial_plan.make(specs, KNOWN, [0], demands=[Demand(model="resnet50", rate=1e7, slo_ms=25.0)], fill=True)
    assert plan.policy == "nway+type"
    assert {task.model for task in plan.tasks()} == {"resnet50", "bert"}


def test_an_slo_that_nothing_meets_is_served_anyway_and_said():
    plan = initial_plan.make([spec("vgg16", slo_ms=0.01)], KNOWN, [0])
    assert placed(plan) == {0: [(1.0, ["vgg16"])]}
    assert "no plan holds" in plan.notes[0]


def test_without_profiles_models_take_turns_on_whole_devices():
    specs = [spec("a"), spec("b")]
    assert placed(initial_plan.make(specs, None, [0, 1])) == {0: [(1.0, ["a", "b"])], 1: [(1.0, ["a", "b"])]}
    assert placed(initial_plan.make(specs, None, [0], apart=True)) == {0: [(0.5, ["a"]), (0.5, ["b"])]}


def test_a_share_in_the_configuration_is_kept():
    specs = [spec("resnet50", sm=0.3), spec("bert"), spec("vgg16")]
    assert placed(initial_plan.make(specs, KNOWN, [0])) == {0: [(0.3, ["resnet50"]), (0.7, ["bert", "vgg16"])]}


def test_shares_that_do_not_fit_on_one_device_are_spread():
    specs = [spec("a", sm=0.7), spec("b", sm=0.6), spec("c")]
    assert placed(initial_plan.make(specs, None, [0, 1])) == {
        0: [(0.7, ["a"]), (0.3, ["c"])],
        1: [(0.6, ["b"]), (0.4, ["c"])],
    }
    with pytest.raises(UsageError, match="do not fit on 1 devices: a 70%, b 60%"):
        initial_plan.make(specs, None, [0])
    with pytest.raises(UsageError, match="leave nothing for c"):
        initial_plan.make([spec("a", sm=1.0), spec("c")], None, [0])


def test_models_that_do_nothing_need_no_device():
    plan = initial_plan.make([model("echo"), spec("resnet50", slo_ms=25.0)], KNOWN, [0])
    assert {task.model for task in plan.tasks()} == {"resnet50"}
    assert initial_plan.make([model("echo")], KNOWN, [0]).gpus == ()


def test_a_profile_may_have_another_name_and_counts_where_it_means_something():
    mine = spec("mine", parameters={"profile": "bert"})
    real = msgspec.structs.replace(mine, name="real", platform="python")
    assert set(profiles_of([mine, real], KNOWN, "cpu").models) == {"mine"}
    assert set(profiles_of([mine, real], KNOWN, "modelled").models) == {"mine", "real"}
    assert profiles_of([real], KNOWN, "cpu") is None


def test_a_plan_has_no_batches_that_the_model_does_not_take():
    most = {"resnet50": 4, "bert": 1}
    specs = [
        model("resnet50", platform="modelled", max_batch=4, slo_ms=1000.0),
        model("bert", platform="modelled", max_batch=0, slo_ms=1000.0),
    ]
    wanted = [Demand(model="resnet50", rate=100, slo_ms=1000)]
    plan = initial_plan.make(specs, profiles_of(specs, KNOWN, "modelled"), [0], demands=wanted, fill=True)
    assert {task.model for task in plan.tasks()} == set(most)
    assert all(task.batch <= most[task.model] for task in plan.tasks())


def test_what_a_plan_rests_on_is_told_truly():
    both = [spec("resnet50", slo_ms=25.0), spec("bert", slo_ms=25.0)]
    mixed = [both[0], spec("language", platform="python")]
    fixed = [both[0], spec("bert", sm=0.5)]
    tight = [spec("resnet50", slo_ms=0.01)]
    told = {}
    for name, specs, backend in (
        ("planned", both, "modelled"), ("mixed", mixed, "cpu"), ("fixed", fixed, "modelled"),
        ("tight", tight, "modelled"), ("without", mixed[1:], "cpu"),
    ):  # fmt: skip
        known = profiles_of(specs, KNOWN, backend)
        told[name] = initial_plan.basis(initial_plan.make(specs, known, [0]), specs, known)
    of = f"modelled profiles of {KNOWN.device.name}"
    without = "the configuration: there is no profile of language for this device"
    assert told == {
        "planned": {"profiles": "modelled", "plan": f"policy nway+type, {of}"},
        "mixed": {"profiles": "modelled, of resnet50 only", "plan": without},
        "fixed": {"profiles": "modelled", "plan": "the configuration: `sm` is set for bert"},
        "tight": {"profiles": "modelled", "plan": "the configuration, since no plan holds"},
        "without": {"profiles": "none", "plan": without},
    }


def test_devices_of_several_kinds_are_planned_and_told_of_by_kind():
    slow = named(msgspec.structs.replace(KNOWN, models={"resnet50": KNOWN.models["resnet50"]}), "slow")
    slow = msgspec.structs.replace(slow, origin="measured")
    known = kinds.of_devices([KNOWN, slow], {1: KNOWN.device.name, 4: "slow"})
    specs = [spec("resnet50", slo_ms=25.0), spec("bert", slo_ms=25.0)]
    plan = initial_plan.make(specs, profiles_of(specs, known, "modelled"), [1, 4])
    assert {gpu.index: gpu.device for gpu in plan.gpus} == {1: KNOWN.device.name, 4: "slow"}
    assert "bert" not in {task.model for gpu_let in plan.gpus[1].gpu_lets for task in gpu_let.tasks}
    assert initial_plan.basis(plan, specs, known) == {
        "profiles": f"{KNOWN.device.name}: modelled; slow: measured, of resnet50 only",
        "plan": f"policy nway+type, modelled profiles of {KNOWN.device.name} and measured profiles of slow",
    }
    unknown = [*specs, spec("mine")]
    plan = initial_plan.make(unknown, known, [1, 4])
    assert [gpu.device for gpu in plan.gpus] == [KNOWN.device.name, "slow"]
    assert initial_plan.basis(plan, unknown, known)["plan"] == (
        "the configuration: there is no profile of mine for this device"
    )


def test_gpus_of_a_kind_are_found_by_their_name(monkeypatch):
    here = ("NVIDIA H100", "NVIDIA A100", "NVIDIA H100", "NVIDIA H100")
    monkeypatch.setattr(backend_choice, "gpu_names", lambda: here)
    monkeypatch.setattr(backend_choice, "_missing", lambda _: "")
    counts = [(named(KNOWN, "NVIDIA A100"), 1), (named(KNOWN, "NVIDIA H100"), 2)]
    chosen, known = backend_choice.of_kinds("auto", counts)
    assert chosen.devices == (0, 1, 2)
    assert known.devices == {0: "NVIDIA H100", 1: "NVIDIA A100", 2: "NVIDIA H100"}
    chosen, known = backend_choice.of_kinds("green", counts[1:])
    assert (chosen.devices, known) == ((0, 2), counts[1][0])
    with pytest.raises(UsageError, match="2 devices of the kind NVIDIA A100 are asked for, 1 are here") as caught:
        backend_choice.of_kinds("green", [(counts[0][0], 2)])
    assert "3 NVIDIA H100, 1 NVIDIA A100" in caught.value.hint
    chosen, known = backend_choice.of_kinds("modelled", counts)
    assert chosen.devices == (0, 1, 2)
    assert known.devices == {0: "NVIDIA A100", 1: "NVIDIA H100", 2: "NVIDIA H100"}
